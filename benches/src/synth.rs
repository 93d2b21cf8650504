//! Writes a model of a real shape with random weights.
//!
//! ```text
//! cargo run --release -p walla_benches --bin synth -- --shape qwen3-0.6b --types q8_0 -o qwen3-0.6b-q8_0.gguf
//! ```

use std::error::Error;
use std::path::PathBuf;

use clap::Parser;
use walla_benches::write_synthetic;

/// Writes a model of a real shape with random weights.
#[derive(Debug, Parser)]
struct Args {
    /// Shape: llama-3.2-1b, llama-3.1-8b, qwen3-0.6b, qwen3-1.7b, qwen3-4b, smollm2-135m,
    /// gemma-3-1b, qwen3-30b-a3b, lfm2-8b-a1b, qwen3.5-0.8b, qwen3.5-2b, qwen3.5-4b, gemma-4-e2b,
    /// granite-4-350m, ministral-3-3b
    #[arg(long)]
    shape: String,
    /// Tensor types: f16, bf16, q8_0, q4_0, q4_k_m, q2_k, q3_k_s, iq4_nl, iq4_xs, mxfp4
    #[arg(long)]
    types: String,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// File to write
    #[arg(short = 'o', long = "out")]
    out: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    write_synthetic(&args.out, &args.shape, &args.types, args.seed)
}
