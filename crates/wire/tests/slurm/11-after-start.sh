#!/bin/bash
#SBATCH --dependency=after:55+5
#
# means: name = 11-after-start
# means: after = 55[]:start+5m
# means: stdout = slurm-{job}.out

python train.py
