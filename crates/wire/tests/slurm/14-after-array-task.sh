#!/bin/bash
#SBATCH --dependency=afterok:40_2
#SBATCH --kill-on-invalid-dep=yes
#
# means: name = 14-after-array-task
# means: after = 40[2]:ok
# means: stdout = slurm-{job}.out

python train.py
