//! Log-probabilities of candidate texts behind a prompt, next to llama.cpp's evaluation of multiple
//! choices.
//!
//! ```text
//! cargo run --release -p walla_benches --bin score -- \
//!     --llama-perplexity PATH --threads 2 --json benches/results/score.json model.gguf
//! ```
//!
//! The texts have distinct words; prompt and texts have at most the given numbers of tokens. In
//! each round walla scores them for every given number of texts, and `llama-perplexity
//! --multiple-choice` evaluates the same texts on the same device. llama.cpp takes at most 100
//! answers per question, so 200 texts are two questions with the same prompt, which it evaluates
//! twice. Its time is the difference of two stamps in its log, without the load of the model, as
//! walla's. The answers are labeled with walla's choice, so that llama.cpp's share of correct
//! answers shows whether both choose the same text.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use walla::{Engine, EngineOptions, FrameBudget, Score};
use walla_benches::{machine, median, output};
use walla_model::Gguf;
use walla_model::tokenizer::{EncodeOptions, Tokenizer};

/// Answers of a question that llama.cpp accepts.
const MAX_LLAMA_ANSWERS: usize = 100;

const WORDS: &[&str] = &[
    "river", "stone", "garden", "letter", "winter", "market", "silver", "window", "bridge",
    "teacher", "morning", "castle", "forest", "island", "mountain", "kitchen", "summer", "wagon",
    "lantern", "shadow", "harbor", "soldier", "story", "village",
];

/// Measures scores of texts.
#[derive(Debug, Parser)]
struct Args {
    /// GGUF file
    model: PathBuf,
    /// Path of llama.cpp's `llama-perplexity`
    #[arg(long)]
    llama_perplexity: Option<PathBuf>,
    /// More arguments for it
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    llama_args: String,
    /// Device: `cpu`, or a GPU such as `cuda:0`
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Threads of both, on a CPU
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Numbers of texts
    #[arg(long, value_delimiter = ',', default_value = "100,200")]
    texts: Vec<usize>,
    /// Tokens of a text
    #[arg(long, default_value_t = 10)]
    tokens: usize,
    /// Tokens of the prompt
    #[arg(long, default_value_t = 500)]
    prompt_tokens: usize,
    /// Rounds; the median counts
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The commit, if git is not available
    #[arg(long)]
    commit: Option<String>,
    /// File to write
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A number of texts, with the milliseconds of each round.
#[derive(Debug, Default)]
struct Case {
    texts: Vec<String>,
    ours: Vec<f64>,
    theirs: Vec<f64>,
    /// Percent of its questions for which llama.cpp chose walla's text.
    agreed: Option<f64>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.json {
        output::check(path, &[&args.model])?;
    }
    let tokenizer = Tokenizer::from_gguf(&Gguf::open(&args.model)?)?;
    let prompt = text(&tokenizer, args.prompt_tokens, 0)?;
    let most = args.texts.iter().max().copied().unwrap_or(0);
    let texts: Result<Vec<String>, _> =
        (1..=most).map(|nth| text(&tokenizer, args.tokens, nth)).collect();
    let texts = texts?;
    let case = |count: &usize| Case { texts: texts[..*count].to_vec(), ..Case::default() };
    let mut cases: Vec<Case> = args.texts.iter().map(case).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for round in 0..args.rounds {
        for case in &mut cases {
            runtime.block_on(case.measure(&args, &prompt))?;
        }
        eprintln!("round {} of {}", round + 1, args.rounds);
    }
    println!("| texts | walla, ms | llama.cpp, ms | ratio | same choice |\n|---|---|---|---|---|");
    for case in &cases {
        let (ours, theirs) = (median(&case.ours), median(&case.theirs));
        let agreed =
            case.agreed.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.0} %"));
        let texts = case.texts.len();
        println!("| {texts} | {ours:.0} | {theirs:.0} | {:.2} | {agreed} |", theirs / ours);
    }
    let Some(path) = &args.json else { return Ok(()) };
    let report = json!({
        "machine": machine::facts(args.commit.as_deref()),
        "model": args.model.file_name().map(|name| name.to_string_lossy()),
        "device": args.device,
        "threads": args.threads,
        "prompt_tokens": args.prompt_tokens,
        "tokens_of_a_text": args.tokens,
        "cases": cases.iter().map(Case::json).collect::<Vec<_>>(),
    });
    Ok(output::replace(path, format!("{report:#}\n"))?)
}

impl Case {
    /// One round of both.
    async fn measure(&mut self, args: &Args, prompt: &str) -> Result<(), Box<dyn Error>> {
        // A new engine, so that no round finds the prompt in the cache.
        let options = EngineOptions {
            device: args.device.clone(),
            threads: Some(args.threads),
            budget: FrameBudget::Unlimited,
            ..EngineOptions::model(&args.model)
        };
        let engine = Engine::start(options).await?;
        engine.score("Warm", ["up"]).await?;
        let begin = Instant::now();
        let scores = engine.score(prompt, &self.texts).await?;
        self.ours.push(1e3 * begin.elapsed().as_secs_f64());
        engine.stop().await;
        let Some(program) = &args.llama_perplexity else { return Ok(()) };
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(&choices(prompt, &self.texts, &scores))?;
        let output = peer(program, args, file.path()).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        self.theirs.push(evaluation(&text).ok_or_else(|| format!("no time in: {text}"))?);
        self.agreed = share(&text);
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "texts": self.texts.len(),
            "walla_ms": self.ours,
            "llama_cpp_ms": self.theirs,
            "same_choice_percent": self.agreed,
        })
    }
}

fn peer(program: &Path, args: &Args, choices: &Path) -> Command {
    let layers = if args.device == "cpu" { "0" } else { "999" };
    let threads = args.threads.to_string();
    let mut command = Command::new(program);
    command.arg("-m").arg(&args.model).arg("-bf").arg(choices);
    command.args(["--multiple-choice", "-c", "32", "-np", "128", "-kvu", "-ngl", layers]);
    command.args(["-t", &threads, "-tb", &threads]).args(args.llama_args.split_whitespace());
    command
}

/// A text of at most `tokens` tokens, whose words depend on `seed`.
fn text(tokenizer: &Tokenizer, tokens: usize, seed: usize) -> Result<String, Box<dyn Error>> {
    let options = EncodeOptions { add_special: false, parse_special: false };
    let mut text = String::new();
    // The first words are the digits of the seed, so that texts differ.
    let digits = [seed % WORDS.len(), seed / WORDS.len() % WORDS.len()];
    for nth in 0.. {
        let index = digits.get(nth).copied().unwrap_or(nth * nth + nth * (seed + 7));
        let longer = format!("{text} {}", WORDS[index % WORDS.len()]);
        match tokenizer.encode(&longer, options)?.len() {
            count if count > tokens => break,
            _ => text = longer,
        }
    }
    Ok(text)
}

/// llama.cpp's file of questions: their number and places, and for each the question and two lists
/// of answers with labels (`tools/perplexity/perplexity.cpp`, `multiple_choice_task`).
fn choices(prompt: &str, texts: &[String], scores: &[Score]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let mut questions = Vec::new();
    for (part, scores) in texts.chunks(MAX_LLAMA_ANSWERS).zip(scores.chunks(MAX_LLAMA_ANSWERS)) {
        let best = scores.iter().max_by(|a, b| a.per_token().total_cmp(&b.per_token()));
        let best = best.map(|score| score.index);
        let mut question = string(prompt);
        question.extend((part.len() as u32).to_le_bytes());
        question.extend(part.iter().flat_map(|text| string(text.trim_start())));
        for score in scores {
            question.extend(i32::from(Some(score.index) == best).to_le_bytes());
        }
        question.extend(0_u32.to_le_bytes());
        questions.push(question);
    }
    let mut at = 4 + 4 * questions.len();
    let mut file = (questions.len() as u32).to_le_bytes().to_vec();
    for question in &questions {
        file.extend((at as u32).to_le_bytes());
        at += question.len();
    }
    file.extend(questions.concat());
    file
}

/// Milliseconds of llama.cpp's evaluation: between two lines of its log, whose stamps are minutes,
/// seconds, milliseconds and microseconds.
fn evaluation(text: &str) -> Option<f64> {
    let stamp = |end: &str| {
        let before = text.split(end).next().filter(|before| before.len() < text.len())?;
        let stamp = before.split_whitespace().rev().find(|word| word.matches('.').count() == 3)?;
        // A line of progress may precede the stamp without a line break.
        let others = |c: char| !c.is_ascii_digit() && c != '.';
        let mut parts = stamp.rsplit(others).next()?.split('.').map(str::parse::<f64>);
        let mut next = || parts.next()?.ok();
        Some(60e3 * next()? + 1e3 * next()? + next()? + next()? / 1e3)
    };
    Some(stamp("Final result")? - stamp("calculating TruthfulQA score")?)
}

/// Percent of its questions that llama.cpp answered with the labeled text: the last line of the
/// form `1 100.0`.
fn share(text: &str) -> Option<f64> {
    let numbers = |line: &str| {
        let mut words = line.split_whitespace();
        let _number: u32 = words.next()?.parse().ok()?;
        words.next()?.parse().ok().filter(|_| words.next().is_none())
    };
    text.lines().rev().find_map(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_of_the_peer_are_read() {
        let text = "task\tacc_norm\n1\t100.00000000\n2\t50.00000000\n\n0.00.9 I x\n\
                    tasks0.01.077.050 I multiple_choice_score : calculating TruthfulQA score over\n\
                    1.21.989.500 I Final result: 50.0000 +/- 1\n";
        let ms = evaluation(text).expect("two stamps");
        assert!((ms - 80_912.45).abs() < 1e-6, "{ms}");
        assert_eq!(share(text), Some(50.0));
    }

    #[test]
    fn questions_are_split_and_name_the_best_text() {
        let texts: Vec<String> = (0..101).map(|n| format!(" {n}")).collect();
        let score = |index| Score { index, tokens: 1, log_probability: -(index as f32) };
        let scores: Vec<Score> = (0..101).map(score).collect();
        let file = choices("Q", &texts, &scores);
        let number = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!((number(0), number(4), number(12), number(17)), (2, 12, 1, 100));
        let second = number(8) as usize;
        assert_eq!((&file[second + 4..second + 5], number(second + 5)), (&b"Q"[..], 1));
        // Text "100", its label, and no further answers.
        assert_eq!(&file[second + 9..], b"\x03\0\0\x00100\x01\0\0\0\0\0\0\0");
    }
}
