#!/bin/bash
#SBATCH --ntasks=4
#
# refused: `srun`

srun python train.py
