//! Arguments of the command.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use walla::{Constraint, Pooling};
use walla_device::{GpuContext, OpenOptions};
use walla_model::chat::TemplateChoice;

use crate::input::{TextError, text};
#[cfg(feature = "voice")]
use crate::voice::args::{Speak, Talk, Transcribe};

/// Run language model agents for games and robots: inspect model files, try them, measure them.
#[derive(Debug, Parser)]
#[command(name = "walla", version, arg_required_else_help = true)]
pub struct Arguments {
    #[command(subcommand)]
    pub verb: Verb,
}

impl Arguments {
    /// Whether the command has this verb.
    pub fn has_verb(name: &str) -> bool {
        <Self as clap::CommandFactory>::command().find_subcommand(name).is_some()
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the contents of a model file
    Inspect(Inspect),
    /// Convert text to token ids
    Tokenize(Tokenize),
    /// Convert token ids to text
    Detokenize(Detokenize),
    /// Compute vectors of texts with an embedding model
    ///
    /// Writes one line of JSON for each text. Texts of similar meaning have similar vectors.
    Embed(Embed),
    /// Evaluate token sequences as one batch and write all logits
    Logits(Logits),
    /// Continue a prompt as raw text, without a chat template, reasoning not separated
    Generate(Generate),
    /// Print how probable texts are behind a prompt, as log-probabilities
    ///
    /// The prompt is evaluated once. A word behind it usually begins with its space.
    Score(Score),
    /// Talk to an agent
    Chat(Chat),
    /// Show a recorded session, and verify it with its model or play it as text
    ///
    /// With the model, every token is compared, at any number of threads; the first one that
    /// differs is reported, and the command fails. The demo model needs no --model.
    Replay(Replay),
    /// Serve the chat completions protocol for tools and for other machines
    ///
    /// POST /v1/chat/completions and /v1/embeddings, GET /v1/models and /health. All requests run
    /// as one batch. Ends with Ctrl-C or SIGTERM.
    #[cfg(feature = "serve")]
    Serve(Serve),
    /// Fetch a model from a registry and print the path of its file
    ///
    /// Checks size and SHA-256, continues a partial download, and writes the text of the license
    /// next to the model. Nothing is fetched by any other verb.
    #[cfg(feature = "pull")]
    Pull(Pull),
    /// Speak a text to a WAV file, with the times of the mouth's shapes
    ///
    /// 16 bits, mono, at the rate of the voice. The same text, voice and seed give the same samples
    /// on the same kind of machine.
    #[cfg(feature = "voice")]
    Speak(Speak),
    /// Write down the speech of a WAV file, a line for each utterance
    ///
    /// Integers of 8 to 32 bits or floats, any number of channels, 4,000 to 384,000 samples a
    /// second, of any length. A line has the begin, the end and the text of an utterance.
    #[cfg(feature = "voice")]
    Transcribe(Transcribe),
    /// Talk to an agent by voice, in real time
    ///
    /// With files, or with the programs of the system: arecord -f S16_LE -r 16000 | walla talk - …
    /// A player who speaks interrupts the agent, which remembers the part that was played.
    #[cfg(feature = "voice")]
    Talk(Box<Talk>),
    /// Measure milliseconds per step for several numbers of agents
    ///
    /// With WALLA_TRACE=FILE in the environment, the host's stages of each step are recorded too.
    Bench(Bench),
    /// Measure the replies of a model to the requests of a game, and print a card
    ///
    /// Actions: 14 requests of a shop's customers and 6 lines of talk, under Auto and Required;
    /// right is the expected call with its arguments. Memory: 36 facts, asked in their words and in
    /// others; right is the word of the fact in the reply. Constraints: 10 schemas, expressions and
    /// choices, twice; right is a reply that other code accepts, and cut replies are counted apart.
    /// Refusals: a secret word that is not in the reply, a call of `refuse`, no number that the
    /// character cannot know. Speed: first words, tokens per second of 1 and 8 agents, memory.
    #[cfg(feature = "evaluate")]
    Evaluate(Evaluate),
    /// Report whether models fit this machine: memory, and measured milliseconds per step
    Fit(Fit),
    /// List the devices of this machine
    Devices(Devices),
}

#[derive(Debug, Args)]
pub struct Inspect {
    /// GGUF file
    pub model: PathBuf,
    /// One JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub template: TemplateArgs,
}

/// Chat template.
#[derive(Debug, Args)]
pub struct TemplateArgs {
    /// Chat template instead of the model's: chatml, llama3, gemma, mistral, or a Jinja file
    #[arg(long, value_name = "NAME|FILE")]
    pub template: Option<TemplateChoice>,
}

fn pooling(text: &str) -> Result<Pooling, String> {
    let all = [Pooling::Mean, Pooling::First, Pooling::Last];
    let found = all.into_iter().find(|pooling| pooling.name() == text);
    found.ok_or_else(|| "expected mean, first or last".to_owned())
}

#[derive(Debug, Args)]
pub struct Embed {
    /// GGUF file of an embedding model
    pub model: PathBuf,
    /// Texts; `-` reads lines of standard input
    #[arg(required = true)]
    pub texts: Vec<String>,
    /// Write a matrix of cosines instead of vectors
    #[arg(long)]
    pub similarity: bool,
    /// Precede each text with this text, which some models need for questions or for documents
    #[arg(long, default_value = "", hide_default_value = true, allow_hyphen_values = true)]
    pub prefix: String,
    /// Threads
    #[arg(long, default_value_t = 2)]
    pub threads: u32,
    /// Tokens of the longest text [default: the model's context; 2048 for models that generate]
    #[arg(long)]
    pub context: Option<u32>,
    /// Replace the pooling of the file: mean, first or last token
    #[arg(long, value_parser = pooling)]
    pub pooling: Option<Pooling>,
    /// Fail for a longer text instead of cutting it
    #[arg(long)]
    pub refuse_long: bool,
}

#[derive(Debug, Args)]
pub struct Tokenize {
    /// GGUF file
    pub model: PathBuf,
    /// Parse the texts of special tokens
    #[arg(long)]
    pub special: bool,
    /// Encode as text from a player: no special or user-defined token (without this flag
    /// user-defined tokens are matched, as by llama.cpp)
    #[arg(long, conflicts_with = "special")]
    pub untrusted: bool,
    /// Add the tokens that the model requires around a text (BOS)
    #[arg(long)]
    pub bos: bool,
    /// The text
    #[arg(required_unless_present = "file", conflicts_with = "file", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Read the text from a file instead
    #[arg(long)]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub pre: PreArgs,
}

#[derive(Debug, Args)]
pub struct Detokenize {
    /// GGUF file
    pub model: PathBuf,
    /// Token ids, separated by spaces or commas
    #[arg(required = true, value_delimiter = ',')]
    pub ids: Vec<u32>,
    #[command(flatten)]
    pub pre: PreArgs,
}

/// Pre-tokenizer.
#[derive(Debug, Args)]
pub struct PreArgs {
    /// Pre-tokenizer, instead of the file's: llama-bpe, qwen2, … [default: tokenizer.ggml.pre]
    #[arg(long, value_name = "NAME")]
    pub pre: Option<String>,
}

/// Device and threads.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Device: auto, cpu, cuda:0, vulkan:0 (see `walla devices`)
    #[arg(long, default_value = "auto")]
    pub device: String,
    /// Maximum number of CPU threads [default: half of the cores]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,
    #[command(flatten)]
    pub share: ShareArgs,
}

impl DeviceArgs {
    /// As options of a registry.
    pub fn open_options(&self) -> OpenOptions {
        let gpu_context = self.share.gpu_context();
        OpenOptions { threads: self.threads, gpu_context, ..OpenOptions::default() }
    }
}

/// Share of a GPU.
#[derive(Debug, Args)]
pub struct ShareArgs {
    /// Per cent of a GPU's multiprocessors, if driver and GPU can partition them [default: all]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub gpu_share: Option<u32>,
}

impl ShareArgs {
    /// The requested context.
    pub fn gpu_context(&self) -> GpuContext {
        self.gpu_share.map_or(GpuContext::Separate, |percent| GpuContext::Share { percent })
    }
}

/// An engine: its pre-tokenizer, budget and device.
#[derive(Debug, Args)]
pub struct EngineArgs {
    #[command(flatten)]
    pub pre: PreArgs,
    /// Milliseconds of device time per 1/60 s [default: no limit]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = milliseconds)]
    pub budget: Option<Duration>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    let millis = text.parse().ok().filter(|millis: &f64| (0.01..=1_000.0).contains(millis));
    let millis = millis.ok_or_else(|| format!("{text:?} is no number from 0.01 to 1000"))?;
    Ok(Duration::from_secs_f64(millis / 1e3))
}

#[derive(Debug, Args)]
pub struct Logits {
    /// GGUF file
    pub model: PathBuf,
    /// Token ids of one sequence, separated by commas; may be given several times
    #[arg(long = "tokens", required = true, value_name = "IDS")]
    pub tokens: Vec<IdList>,
    /// File to write: little-endian f32 rows
    #[arg(long)]
    pub out: PathBuf,
    /// Number format of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// Context length that selects the rotary embedding, if a model has several [default: the
    /// model's]
    #[arg(long)]
    pub context: Option<u32>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Number format of the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kv {
    F16,
    F32,
    /// 8 bits, and a scale for each head's key and value: half of the memory
    Q8,
}

impl From<Kv> for walla_device::KvType {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => Self::F16,
            Kv::F32 => Self::F32,
            Kv::Q8 => Self::Q8,
        }
    }
}

/// `1,2,3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdList(pub Vec<u32>);

impl std::str::FromStr for IdList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number =
            |part: &str| part.trim().parse().map_err(|_| format!("{part:?} is no token id"));
        text.split(',').map(number).collect::<Result<_, _>>().map(Self)
    }
}

/// Sampling of tokens.
#[derive(Debug, Args)]
pub struct SamplingArgs {
    /// Always the likeliest token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    pub greedy: bool,
    /// Divides the logits; 0 is greedy [default: 0.7]
    #[arg(long, allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Tokens kept; 0 keeps all [default: 40]
    #[arg(long)]
    pub top_k: Option<u32>,
    /// Probability mass kept [default: 0.95]
    #[arg(long, allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Smallest probability relative to the likeliest token [default: 0.05]
    #[arg(long, allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// Divides the logits of recent tokens; 1 is off [default: 1]
    #[arg(long, allow_negative_numbers = true)]
    pub repetition_penalty: Option<f32>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl SamplingArgs {
    /// The checked parameters.
    pub fn sampling(&self) -> Result<walla_types::Sampling, walla_types::InvalidSampling> {
        if self.greedy {
            return Ok(walla_types::Sampling::greedy());
        }
        let default = walla_types::Sampling::default();
        walla_types::Sampling::builder()
            .temperature(self.temperature.unwrap_or(default.temperature()))
            .top_k(self.top_k.unwrap_or(default.top_k()))
            .top_p(self.top_p.unwrap_or(default.top_p()))
            .min_p(self.min_p.unwrap_or(default.min_p()))
            .repetition_penalty(self.repetition_penalty.unwrap_or(1.0))
            .seed(self.seed)
            .build()
    }
}

#[derive(Debug, Args)]
pub struct Generate {
    /// GGUF file
    pub model: PathBuf,
    /// The text to continue
    #[arg(long, allow_hyphen_values = true)]
    pub prompt: String,
    /// Parse the texts of special tokens in it
    #[arg(long)]
    pub special: bool,
    /// Maximum number of tokens
    #[arg(short = 'n', default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Tokens of prompt and reply together
    #[arg(long, default_value_t = 2_048)]
    pub context: u32,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Args)]
pub struct Score {
    /// GGUF file
    pub model: PathBuf,
    /// The text before the scored texts
    #[arg(long, allow_hyphen_values = true)]
    pub prompt: String,
    /// Parse the texts of special tokens in the prompt
    #[arg(long)]
    pub special: bool,
    /// A text to score; may be given several times
    #[arg(long = "text", value_name = "TEXT", allow_hyphen_values = true)]
    pub texts: Vec<String>,
    /// A file with a text to score in each line; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "texts", required_unless_present = "texts")]
    pub lines: Option<PathBuf>,
    /// One JSON object per text, instead of columns
    #[arg(long)]
    pub json: bool,
    /// Tokens of the prompt and a text together
    #[arg(long, default_value_t = 2_048)]
    pub context: u32,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Message for a constrained reply that a limit ended.
pub const CUT: &str = "the reply is cut: it does not conform to the constraint";

/// Condition on the text of replies.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct ConstraintArgs {
    /// Replies are JSON that conforms to the schema in this file
    #[arg(long, value_name = "FILE")]
    pub json_schema: Option<PathBuf>,
    /// Replies match this regular expression, from beginning to end
    #[arg(long, value_name = "REGEX", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// Replies are one of these texts
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', allow_hyphen_values = true)]
    pub choice: Vec<String>,
    /// Replies conform to the Lark grammar in this file
    #[arg(long, value_name = "FILE")]
    pub lark: Option<PathBuf>,
}

impl ConstraintArgs {
    /// The constraint, if there is one.
    pub fn constraint(&self) -> Result<Option<Constraint>, TextError> {
        Ok(match self {
            Self { json_schema: Some(file), .. } => Some(Constraint::json_schema(text(file)?)),
            Self { lark: Some(file), .. } => Some(Constraint::lark(text(file)?)),
            Self { regex: Some(regex), .. } => Some(Constraint::regex(regex.as_str())),
            Self { choice, .. } if !choice.is_empty() => {
                Some(Constraint::choice(choice.iter().map(String::as_str)))
            }
            Self { .. } => None,
        })
    }
}

#[derive(Debug, Args)]
pub struct Replay {
    /// Recording, for example of `walla chat --record FILE`
    pub file: PathBuf,
    /// GGUF file of the recorded model: compares every token
    #[arg(long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// Write the recorded conversations as text, without a model
    #[arg(long, conflicts_with = "model")]
    pub play: bool,
    /// Agents that speak at the same time in the replay
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub agents: u32,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[derive(Debug, Args)]
pub struct Chat {
    /// GGUF file [default: the demo model]
    pub model: Option<PathBuf>,
    /// Persona of the agent (system text)
    #[arg(long, default_value = "")]
    pub persona: String,
    /// Maximum tokens of a reply, without reasoning
    #[arg(short = 'n', default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: u32,
    /// Reason before speaking, if the model's chat template has a switch for that [default: off]
    #[arg(long, value_enum, value_name = "SWITCH")]
    pub thinking: Option<Switch>,
    /// Maximum tokens of reasoning in a reply; then the reasoning block is closed
    #[arg(long, value_name = "TOKENS", default_value_t = 1_024)]
    pub reasoning_tokens: u32,
    /// Whether reasoning is written to standard error
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Visibility::Auto)]
    pub reasoning: Visibility,
    /// After each reply, write its prompt tokens, the parts of the time to its first token and its
    /// token rate to standard error
    #[arg(long)]
    pub times: bool,
    /// Record the session to this file, for `walla replay`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Tokens of the agent's context
    #[arg(long, default_value_t = 4_096)]
    pub context: u32,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub constraint: ConstraintArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[cfg(feature = "serve")]
#[derive(Debug, Args)]
pub struct Serve {
    /// GGUF file [default: the demo model]
    pub model: Option<PathBuf>,
    /// Port; 0 chooses a free one
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Address to listen on; 0.0.0.0 makes the server reachable from other machines
    #[arg(long, default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Environment variable with the key that requests must have [default: none]
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// GGUF file of an embedding model, for /v1/embeddings
    #[arg(long, value_name = "FILE")]
    pub embedding_model: Option<PathBuf>,
    /// Origin of web pages whose scripts may send requests, such as http://localhost:3000; * is
    /// any; may be repeated [default: none]
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Number of replies in one batch; more requests wait
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub agents: u32,
    /// Maximum number of requests in progress or waiting
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub requests: u32,
    /// Maximum number of connections of one address. Behind a proxy all clients have its address
    /// [default: half of all connections, which are 512 or twice the requests]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub peer_connections: Option<u32>,
    /// Tokens of each context
    #[arg(long, default_value_t = 4_096)]
    pub context: u32,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[cfg(feature = "pull")]
#[derive(Debug, Args)]
pub struct Pull {
    /// OWNER/MODEL[:TAG], such as Qwen/Qwen3-0.6B-GGUF:Q8_0
    pub name: String,
    /// Folder of the file MODEL-TAG.gguf [default: the current one]
    #[arg(long, value_name = "FOLDER")]
    pub to: Option<PathBuf>,
    /// Address of the registry, such as https://registry.ollama.ai; https unless it begins with
    /// http:// [default: WALLA_REGISTRY of the environment, then https://huggingface.co]
    #[arg(long, value_name = "URL")]
    pub registry: Option<String>,
    /// Environment variable with the key for a private model, which is sent to the registry alone
    /// [default: none]
    #[arg(long, value_name = "NAME")]
    pub key_env: Option<String>,
    /// Replace a file that has other content
    #[arg(long)]
    pub force: bool,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Whether reasoning is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Visibility {
    /// On a terminal, dimmed
    Auto,
    Show,
    Hide,
}

#[derive(Debug, Args)]
pub struct Bench {
    /// GGUF file
    pub model: PathBuf,
    /// Numbers of agents
    #[arg(long, value_delimiter = ',', default_value = "1,4,16")]
    pub agents: Vec<u32>,
    /// Tokens of context before the first measured step
    #[arg(long, value_delimiter = ',', default_value = "128")]
    pub context: Vec<u32>,
    /// Measured steps
    #[arg(long, default_value_t = 64)]
    pub tokens: u32,
    /// Prompt tokens per prefill step
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=512))]
    pub prefill_rows: u32,
    /// Number format of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// Copy results to the host after an event even if kernels can write them to host memory
    #[arg(long)]
    pub copied_results: bool,
    /// Compare agents 0, 1, 3, 4 of eight with agents 0, 1, 2, 3
    #[arg(long)]
    pub holes: bool,
    /// Also run this llama-batched-bench on the same file and device; it uses the whole GPU
    #[arg(long, value_name = "PATH", conflicts_with = "gpu_share")]
    pub llama: Option<PathBuf>,
    /// More arguments for it: some builds keep an 8-bit cache only with "-fa on"
    #[arg(
        long,
        value_name = "ARGS",
        requires = "llama",
        allow_hyphen_values = true,
        default_value = ""
    )]
    pub llama_args: String,
    /// Write the numbers to a file
    #[arg(long)]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
}

#[cfg(feature = "evaluate")]
#[derive(Debug, Args)]
pub struct Evaluate {
    /// GGUF file [default: the demo model]
    pub model: Option<PathBuf>,
    /// Parts to measure
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "speed,actions,memory,constraints,refusals"
    )]
    pub parts: Vec<Part>,
    /// Write the card to a file, with all failures
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// A part of an evaluation.
#[cfg(feature = "evaluate")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    Speed,
    Actions,
    Memory,
    Constraints,
    Refusals,
}

#[derive(Debug, Args)]
pub struct Fit {
    /// GGUF files
    #[arg(required = true)]
    pub models: Vec<PathBuf>,
    /// Agents that speak at the same time, each with a full context [default: as an engine
    /// chooses, on a CPU by the free memory]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub agents: Option<u32>,
    /// Context of each agent in tokens
    #[arg(long, default_value_t = 1024, value_parser = contexts())]
    pub context: u32,
    /// Milliseconds of a frame that steps may use [default: 8.33 on a CPU, 4.17 on a GPU]
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = milliseconds)]
    pub budget: Option<Duration>,
    /// Number format of the KV cache
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    pub kv: Kv,
    /// One JSON array instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArgs,
}

fn contexts() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(64..=1 << 20)
}

#[derive(Debug, Args)]
pub struct Devices {
    /// Open each device: properties, free memory, driver calls, number of programs that are graphs
    /// and the reasons why others are not
    #[arg(short, long)]
    pub verbose: bool,
    /// Compare each device with the exact kernels of the CPU, and measure it
    ///
    /// All types of weights, and the demo model: logits, tokens, draws, steps of 1 and 16 agents;
    /// memory bandwidth. Takes some seconds. A report of a device that walla was not run on is
    /// welcome. Fails if a device computes something else.
    #[arg(long, conflicts_with = "verbose")]
    pub self_test: bool,
    /// The device of the self-test [default: each]
    #[arg(long, value_name = "NAME", requires = "self_test")]
    pub device: Option<String>,
    #[command(flatten)]
    pub share: ShareArgs,
    /// JSON instead of text
    #[arg(long)]
    pub json: bool,
}
