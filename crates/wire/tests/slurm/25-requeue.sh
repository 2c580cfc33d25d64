#!/bin/bash
#SBATCH --requeue
#
# means: name = 25-requeue
# means: stdout = slurm-{job}.out
# means: env SLURM_RESTART_COUNT = {restarts}

python train.py
