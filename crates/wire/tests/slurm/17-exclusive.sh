#!/bin/bash
#SBATCH --exclusive
#
# refused: `--exclusive`

python train.py
