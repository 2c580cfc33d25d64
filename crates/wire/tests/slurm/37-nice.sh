#!/bin/bash
#SBATCH --nice=100
#SBATCH --comment='a b'
#
# means: name = 37-nice
# means: priority = low
# means: stdout = slurm-{job}.out

python train.py
