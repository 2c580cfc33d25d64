#!/bin/bash
#SBATCH --mem-per-gpu=20G
# refused: `--mem-per-gpu`
true
