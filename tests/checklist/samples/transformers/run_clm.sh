export TOKENIZERS_PARALLELISM=false
accelerate launch --num_processes 4 --mixed_precision bf16 \
  run_clm.py \
  --model_name_or_path openai-community/gpt2 \
  --dataset_name wikitext \
  --per_device_train_batch_size 8 \
  --gradient_accumulation_steps=2 \
  --learning_rate 5e-5 --weight_decay 0.1 \
  --max_steps 1000 --warmup_steps 100 \
  --bf16 True --seed 7 \
  --output_dir "out/$(date +%s)"
