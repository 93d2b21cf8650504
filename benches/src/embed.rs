//! Vectors of texts: milliseconds per text and texts per second of embedding models on the CPU,
//! through the embedder's queue and thread.
//!
//! ```text
//! cargo run --release -p walla_benches --bin embed -- minilm-f16.gguf minilm-q8_0.gguf
//! ```
//!
//! Texts have 12, 32 and 128 tokens, with the two at the ends. They are computed one at a time, as
//! for a question, and in requests of 32, as for a store of documents. All cases of a round run
//! after each other, and the median of the rounds counts, so that other work on the machine affects
//! all of them alike. `--peer` runs another program on the same texts in each round. It receives
//! the model, a file with the texts (each ends with a zero byte), the threads and the texts of a
//! batch, and prints the seconds of the run as the last word of its first line.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use walla::{Embedder, EmbedderOptions, Purpose};
use walla_benches::{machine, median, output};
use walla_model::Gguf;
use walla_model::tokenizer::{EncodeOptions, Tokenizer};

/// Measures vectors of texts on the CPU.
#[derive(Debug, Parser)]
struct Args {
    /// GGUF files of embedding models.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Tokens of a text.
    #[arg(long, value_delimiter = ',', default_value = "12,32,128")]
    tokens: Vec<usize>,
    /// Texts of a request.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    batches: Vec<usize>,
    /// Threads of the embedder.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    threads: Vec<u32>,
    /// Rounds; the median counts.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Texts of a measurement.
    #[arg(long, default_value_t = 64)]
    texts: usize,
    /// A program that computes the same texts.
    #[arg(long)]
    peer: Option<PathBuf>,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One measured combination, with the seconds of each round.
struct Case {
    file: PathBuf,
    threads: u32,
    tokens: usize,
    batch: usize,
    seconds: Vec<f64>,
    peer_seconds: Vec<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.json {
        output::check(path, &args.files)?;
    }
    let mut cases = Vec::new();
    for file in &args.files {
        for &threads in &args.threads {
            for &tokens in &args.tokens {
                for &batch in &args.batches {
                    let (seconds, peer_seconds) = (Vec::new(), Vec::new());
                    let file = file.clone();
                    cases.push(Case { file, threads, tokens, batch, seconds, peer_seconds });
                }
            }
        }
    }
    for round in 0..args.rounds {
        for case in &mut cases {
            case.measure(&args)?;
        }
        eprintln!("round {} of {}", round + 1, args.rounds);
    }
    println!(
        "| model | threads | tokens | texts together | ms per text | texts/s | peer: ms per text |"
    );
    println!("|---|---|---|---|---|---|---|");
    for case in &cases {
        let per_text = 1e3 * median(&case.seconds) / args.texts as f64;
        let peer = match median(&case.peer_seconds) {
            seconds if seconds > 0.0 => format!("{:.2}", 1e3 * seconds / args.texts as f64),
            _ => "-".to_owned(),
        };
        let name = case.file.file_stem().map(|name| name.to_string_lossy().into_owned());
        let Case { threads, tokens, batch, .. } = case;
        let (name, rate) = (name.unwrap_or_default(), 1e3 / per_text);
        println!(
            "| {name} | {threads} | {tokens} | {batch} | {per_text:.2} | {rate:.0} | {peer} |"
        );
    }
    if let Some(path) = &args.json {
        let results: Vec<Value> = cases.iter().map(Case::json).collect();
        let machine = machine::facts(args.commit.as_deref());
        let report = json!({"machine": machine, "texts": args.texts, "cases": results});
        output::replace(path, format!("{report:#}\n"))?;
    }
    Ok(())
}

impl Case {
    /// One round.
    fn measure(&mut self, args: &Args) -> Result<(), Box<dyn Error>> {
        let file = Gguf::open(&self.file)?;
        let tokenizer = Tokenizer::from_gguf(&file)?;
        let texts: Vec<String> =
            (0..args.texts).map(|nth| text(&tokenizer, self.tokens, nth)).collect();
        let options = EmbedderOptions {
            threads: self.threads,
            low_priority: false,
            max_batch_tokens: (self.batch * self.tokens).clamp(1, 4_096) as u32,
            ..EmbedderOptions::default()
        };
        let embedder = Embedder::from_gguf(file, options)?;
        let run = |texts: &[String]| embedder.embed_blocking(texts.to_vec(), Purpose::Plain);
        for found in run(&texts[..self.batch.min(texts.len())])? {
            assert_eq!(found.tokens as usize, self.tokens, "the text has other tokens");
        }
        let begin = Instant::now();
        for part in texts.chunks(self.batch) {
            run(part)?;
        }
        self.seconds.push(begin.elapsed().as_secs_f64());
        embedder.close();
        if let Some(peer) = &args.peer {
            self.peer_seconds.push(self.run_peer(peer, &texts)?);
        }
        Ok(())
    }

    fn run_peer(&self, peer: &Path, texts: &[String]) -> Result<f64, Box<dyn Error>> {
        let mut list = tempfile::NamedTempFile::new()?;
        for text in texts {
            list.write_all(text.as_bytes())?;
            list.write_all(&[0])?;
        }
        let numbers = [self.threads.to_string(), self.batch.to_string()];
        let run = Command::new(peer).arg(&self.file).arg(list.path()).args(numbers).output()?;
        let line = String::from_utf8(run.stdout)?;
        let seconds = line.lines().next().and_then(|line| line.split_whitespace().last());
        Ok(seconds.ok_or("the peer printed nothing")?.parse()?)
    }

    fn json(&self) -> Value {
        json!({
            "file": self.file.file_name().map(|name| name.to_string_lossy()),
            "threads": self.threads,
            "tokens": self.tokens,
            "texts_together": self.batch,
            "seconds": self.seconds,
            "peer_seconds": self.peer_seconds,
        })
    }
}

/// A text of exactly `tokens` tokens, with the two at the ends; `nth` changes its words.
fn text(tokenizer: &Tokenizer, tokens: usize, nth: usize) -> String {
    const WORDS: [&str; 12] = [
        "the", "smith", "night", "king", "iron", "door", "rain", "horse", "river", "bread",
        "stone", "road",
    ];
    let options = EncodeOptions { add_special: true, parse_special: false };
    let mut text = String::new();
    for word in 0.. {
        let longer = format!("{text}{} ", WORDS[(word * 5 + word * word + nth) % WORDS.len()]);
        let count = tokenizer.encode(&longer, options).map_or(usize::MAX, |ids| ids.len());
        if count > tokens {
            break;
        }
        text = longer;
    }
    text
}
