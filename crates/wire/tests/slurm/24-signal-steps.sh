#!/bin/bash
#SBATCH --signal=USR1@120
#
# refused: `B:USR1@120`

python train.py
