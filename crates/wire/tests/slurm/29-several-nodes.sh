#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#
# refused: asks for several nodes

python train.py
