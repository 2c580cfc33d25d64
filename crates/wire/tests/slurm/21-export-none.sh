#!/bin/bash
#SBATCH --export=NONE
#
# means: name = 21-export-none
# means: export = NONE
# means: stdout = slurm-{job}.out

python train.py
