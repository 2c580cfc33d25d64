#!/bin/bash
#SBATCH --begin=now+1hour
#
# means: name = 15-begin
# means: begin = now+1hour
# means: stdout = slurm-{job}.out

python train.py
