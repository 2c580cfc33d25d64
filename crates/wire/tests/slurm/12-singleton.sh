#!/bin/bash
#SBATCH -J nightly
#SBATCH --dependency=singleton
#
# means: name = nightly
# means: after = singleton
# means: stdout = slurm-{job}.out

python train.py
