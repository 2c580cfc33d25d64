#!/bin/bash
#SBATCH --export=PATH,LR=0.1,MODEL=llama
#
# means: name = 22-export-some
# means: export = PATH,LR=0.1,MODEL=llama
# means: stdout = slurm-{job}.out

python train.py
