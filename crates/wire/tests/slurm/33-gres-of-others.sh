#!/bin/bash
#SBATCH --gres=gpu:1,tmp:100G
#
# refused: `tmp:100G`

python train.py
