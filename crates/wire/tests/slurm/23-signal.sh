#!/bin/bash
#SBATCH --signal=B:USR1@120
#SBATCH --time=1:00:00
#
# means: name = 23-signal
# means: notice = SIGUSR1
# means: grace = 120s
# means: time_limit = 3480s
# means: stdout = slurm-{job}.out

python train.py
