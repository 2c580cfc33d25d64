#!/bin/bash
#SBATCH --dependency=afterok:7?afterok:8
#
# means: name = 10-after-either
# means: after = 7[]:ok?8[]:ok
# means: stdout = slurm-{job}.out

python train.py
