#!/bin/bash
#SBATCH --output=/data/run-%j-%N.log
#SBATCH --open-mode=append
#
# means: name = 18-output
# means: stdout = /data/run-{job}-{node}.log
# means: open_mode = append

python train.py
