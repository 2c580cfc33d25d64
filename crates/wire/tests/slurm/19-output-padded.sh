#!/bin/bash
#SBATCH -o out.%5j
#SBATCH -e err.%%.%j
#
# means: name = 19-output-padded
# means: stdout = out.{job:5}
# means: stderr = err.%.{job}

python train.py
