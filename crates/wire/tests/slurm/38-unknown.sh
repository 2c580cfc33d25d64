#!/bin/bash
#SBATCH --gpu=4
#
# refused: `--gpu`

python train.py
