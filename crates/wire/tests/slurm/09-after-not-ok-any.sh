#!/bin/bash
#SBATCH -d afternotok:7,afterany:8
#
# means: name = 09-after-not-ok-any
# means: after = 7[]:fail,8[]:any
# means: stdout = slurm-{job}.out

python train.py
