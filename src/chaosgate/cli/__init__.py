"""The command line; here the short help of ``fit``, ``validate``, ``test`` and ``predict``.

usage: chaosgate {0} -c FILE [-c FILE ...] [--KEY VALUE ...]

  chaosgate {0} -c base -c data/fashion_mnist -c noise/gch
  chaosgate test -c runs/NAME/config.yaml         the network of a run

  -c FILE                             a file, or a shipped name; later ones win
  --print_config                      show the whole configuration, and stop
  --model.backbone NAME               of timm, or resnet10_small, resnet18_small
  --model.weights FILE                start from a .safetensors, .pth or .ckpt
  --optimizer.lr 0.1                  with --optimizer NAME
  --data.root FOLDER                  where the images are
  --data.batch_size 64                images per process and step
  --data.corruptions paper            test: paper, all, [fog, contrast] or null
  --noise.gate.init_args.log_std 0.5  strength of Gaussian Chaos (noise/gch)
  --noise.stages [L3,L4]              where; see 'chaosgate sites NETWORK'
  --noise.monte_carlo 8               test, predict: mean of 8 noised passes
  --trainer.max_epochs 30             length
  --trainer.devices 2                 processes or GPUs; with -c trainer/ddp
  --seed_everything 1                 seed of everything
  --run_dir FOLDER                    where the run is kept (runs/NAME)
  --ckpt_path FILE                    fit: continue from it; else: the network
  --resume                            fit: continue an interrupted run

'chaosgate configs' lists the shipped files, '--help all' every key.
"""
