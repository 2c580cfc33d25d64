#!/bin/bash
#SBATCH --no-requeue
#
# refused: `--no-requeue`

python train.py
