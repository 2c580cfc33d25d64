#!/bin/bash
#SBATCH --array=0-100:10%2
#
# means: name = 07-array-step
# means: array = 0-100:10
# means: max_parallel = 2
# means: stdout = slurm-{array}_{index}.out

python train.py
