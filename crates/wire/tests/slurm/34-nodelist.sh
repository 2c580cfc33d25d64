#!/bin/bash
#SBATCH --nodelist=gpu07
#SBATCH --exclude=gpu01
#
# refused: `--nodelist`
# refused: `--exclude`

python train.py
