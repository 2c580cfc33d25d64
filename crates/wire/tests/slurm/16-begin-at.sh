#!/bin/bash
#SBATCH -b 2027-01-20T12:34:00
#SBATCH --hold
#
# means: name = 16-begin-at
# means: begin = 2027-01-20T12:34:00
# means: hold = true
# means: stdout = slurm-{job}.out

python train.py
