#!/bin/bash
#SBATCH --deadline=18:00
#SBATCH --time-min=10
#
# refused: `--deadline`
# refused: `--time-min`

python train.py
