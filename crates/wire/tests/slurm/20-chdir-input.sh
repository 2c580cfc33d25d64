#!/bin/bash
#SBATCH --chdir=/data/project
#SBATCH --input=words.txt
#
# means: name = 20-chdir-input
# means: chdir = /data/project
# means: stdin = words.txt
# means: stdout = slurm-{job}.out

python train.py
