#!/bin/bash
#SBATCH -C ib&skylake
#
# refused: `ib&skylake`

python train.py
