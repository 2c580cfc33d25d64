#!/bin/bash
#SBATCH -a 1,3,7
#
# means: name = 06-array-list
# means: array = 1,3,7
# means: stdout = slurm-{array}_{index}.out

python train.py
