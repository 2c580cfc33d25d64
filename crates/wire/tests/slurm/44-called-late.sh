#!/bin/bash
#SBATCH -n1
# refused: `srun`
set -e
if true; then LR=1 srun python train.py; fi
