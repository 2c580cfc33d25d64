#!/bin/bash
#SBATCH --dependency=afterok:101:102
#
# means: name = 08-after-ok
# means: after = 101[]:ok,102[]:ok
# means: stdout = slurm-{job}.out
# means: env SLURM_JOB_DEPENDENCY = afterok:101:102

python train.py
