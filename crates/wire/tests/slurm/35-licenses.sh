#!/bin/bash
#SBATCH --licenses=matlab:2
#SBATCH --reservation=maint
#
# refused: `--licenses`
# refused: `--reservation`

python train.py
