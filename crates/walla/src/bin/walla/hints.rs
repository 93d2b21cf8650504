//! Hints for flags and verbs that comparable programs have under other names (llama.cpp, ollama,
//! vLLM, transformers).

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::args::Arguments;

/// Flags with one meaning, and walla's flags for it: the hint names the first one that the verb
/// has.
const FLAGS: &[(&[&str], &[&str])] = &[
    (
        &[
            "-n",
            "-N",
            "--n-predict",
            "--predict",
            "--num-predict",
            "--max-tokens",
            "--max-new-tokens",
            "--max-completion-tokens",
            "--max-length",
            "--tokens",
        ],
        &["-n", "--tokens"],
    ),
    (&["--temp", "--sampling-temperature"], &["--temperature"]),
    (
        &[
            "-c",
            "--ctx",
            "--ctx-size",
            "--n-ctx",
            "--num-ctx",
            "--context-size",
            "--context-length",
            "--context-window",
            "--max-context",
            "--max-model-len",
        ],
        &["--context"],
    ),
    (&["-p", "--text", "--input"], &["--prompt"]),
    (&["-f", "--prompt-file", "--input-file"], &["--file"]),
    (&["--repeat-penalty", "--frequency-penalty"], &["--repetition-penalty"]),
    (&["-s", "--random-seed", "--sampling-seed", "--rng-seed"], &["--seed"]),
    (&["-t", "--n-threads", "--num-thread", "--num-threads", "--cpu-threads"], &["--threads"]),
    (
        &[
            "-ngl",
            "-dev",
            "-mg",
            "-tp",
            "--n-gpu-layers",
            "--gpu-layers",
            "--num-gpu",
            "--main-gpu",
            "--gpu",
            "--device-id",
            "--tensor-parallel-size",
        ],
        &["--device"],
    ),
    (&["--gpu-memory-utilization"], &["--gpu-share"]),
    (&["-sys", "--sys", "--system", "--system-prompt"], &["--persona"]),
    (&["--jinja", "--chat-template", "--chat-template-file"], &["--template"]),
    (&["-ctk", "-ctv", "--cache-type-k", "--cache-type-v", "--kv-cache-dtype"], &["--kv"]),
    (&["-b", "-ub", "--batch", "--ubatch", "--batch-size", "--ubatch-size"], &["--prefill-rows"]),
    (&["-np", "--parallel", "--n-parallel", "--max-num-seqs"], &["--agents"]),
    (&["-o", "--output", "--outfile", "--output-file"], &["--out"]),
    (&["-m", "--model"], &["--voice", "--model"]),
    (&["--length-scale"], &["--speed"]),
    (&["-l", "--lang"], &["--language"]),
    (&["--parse-special"], &["--special"]),
    (&["--add-bos", "--add-special"], &["--bos"]),
];

/// Flags that no verb of walla has, and why. They count for verbs that generate text.
const ABSENT: &[(&[&str], &str)] = &[
    (
        &["-r", "--stop", "--stop-sequence", "--stop-sequences", "--reverse-prompt"],
        "the command has no stop strings, the library has",
    ),
    (
        &[
            "--typical",
            "--typical-p",
            "--tfs",
            "--tfs-z",
            "--mirostat",
            "--dynatemp-range",
            "--xtc-probability",
            "--dry-multiplier",
            "--presence-penalty",
        ],
        "walla samples with --temperature, --top-k, --top-p, --min-p and --repetition-penalty",
    ),
    (&["--mmap", "--no-mmap", "--mlock"], "walla reads the weights into memory that it owns"),
    (
        &["-fa", "--flash-attn", "--flash-attention"],
        "walla's attention needs no flag: it never stores the scores",
    ),
    (
        &["-b", "-ub", "--batch", "--ubatch", "--batch-size", "--ubatch-size", "--n-batch"],
        "walla chooses the rows of a step itself",
    ),
    (
        &["-sys", "--sys", "--system", "--system-prompt"],
        "walla chat takes a --persona, walla generate continues a text",
    ),
];

/// Flags that name the model, which is a positional argument in walla.
const MODEL: &[&str] =
    &["-m", "-hf", "-hfr", "--model", "--model-path", "--model-file", "--gguf", "--hf-repo"];

/// Flags that begin a conversation, which is a verb in walla.
const CONVERSATION: &[&str] = &["-cnv", "-i", "--conversation", "--interactive"];

/// Verbs with another name.
const VERBS: &[(&[&str], &str)] = &[
    (&["run", "cli", "talk", "interactive"], "walla chat talks to a model"),
    (&["complete", "completion", "predict"], "walla generate continues a text"),
    (&["show", "info", "dump"], "walla inspect shows what a file holds"),
    (&["encode", "tokenise"], "walla tokenize encodes a text"),
    (&["decode", "detokenise"], "walla detokenize decodes token ids"),
    (&["benchmark"], "walla bench measures steps"),
    (&["server", "start"], "walla serve answers requests over HTTP"),
    (&["download", "fetch"], PULL),
    // Without the feature.
    (&["pull"], PULL),
    (&["eval", "evaluate", "judge", "card"], EVALUATE),
    (&["speak", "say", "tts", "synthesize"], SPEAK),
    (&["transcribe", "stt", "asr", "whisper"], TRANSCRIBE),
];

#[cfg(feature = "pull")]
const PULL: &str = "walla pull fetches a model";
#[cfg(not(feature = "pull"))]
const PULL: &str =
    "this build reads GGUF files of this machine; walla with the feature pull fetches";

#[cfg(feature = "evaluate")]
const EVALUATE: &str = "walla evaluate measures the replies of a model";
#[cfg(not(feature = "evaluate"))]
const EVALUATE: &str = "this build measures no replies; walla with the feature evaluate does";

#[cfg(feature = "voice")]
const SPEAK: &str = "walla speak writes a WAV file";
#[cfg(feature = "voice")]
const TRANSCRIBE: &str = "walla transcribe reads a WAV file";
#[cfg(not(feature = "voice"))]
const SPEAK: &str = "this build does not speak; walla with the feature voice does";
#[cfg(not(feature = "voice"))]
const TRANSCRIBE: &str = "this build does not listen; walla with the feature voice does";

/// Walla's name for the first argument that clap refused, if it has one.
pub fn hint(error: &clap::Error, arguments: &[String]) -> Option<String> {
    match error.kind() {
        ErrorKind::InvalidSubcommand => of_verb(error),
        ErrorKind::UnknownArgument => {
            let refused = text(error, ContextKind::InvalidArg)?;
            let whole = whole_name(refused, arguments);
            let names = [&whole, refused, taken_as_text(refused, arguments).unwrap_or_default()];
            let of_peer = names.into_iter().find_map(|name| of_flag(name, arguments));
            // A flag with a known meaning that this verb lacks is not a typing error.
            let similar = || text(error, ContextKind::SuggestedArg).filter(|_| !is_known(&whole));
            of_peer.or_else(|| similar().map(|flag| format!("similar: {flag}")))
        }
        // A short flag of walla with the rest as its value, as in `-ngl 99`.
        ErrorKind::ValueValidation | ErrorKind::InvalidValue => {
            let is_long = |argument: &&String| argument.len() > 2 && is_short(argument);
            let mut long = arguments.iter().filter(is_long);
            long.find_map(|argument| of_flag(argument, arguments))
        }
        _ => None,
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text),
        ContextValue::Strings(texts) => texts.first().map(String::as_str),
        _ => None,
    }
}

fn is_short(argument: &str) -> bool {
    argument.starts_with('-') && !argument.starts_with("--")
}

/// Clap refuses the letters of `-sys` one by one; this finds the whole argument.
fn whole_name(refused: &str, arguments: &[String]) -> String {
    let is_it = |argument: &&String| is_short(refused) && argument.starts_with(refused);
    let name = arguments.iter().find(is_it).map_or(refused, String::as_str);
    name.split('=').next().unwrap_or(name).to_owned()
}

/// The flag before a refused value, if a verb took the flag as its text: `walla tokenize MODEL -f
/// FILE`.
fn taken_as_text<'a>(refused: &str, arguments: &'a [String]) -> Option<&'a str> {
    let at = arguments.iter().position(|argument| argument == refused)?;
    let before = arguments.get(at.checked_sub(1)?)?;
    let is_text = before.starts_with('-') && !refused.starts_with('-');
    let command = Arguments::command();
    let verb = arguments.iter().find_map(|argument| command.find_subcommand(argument))?;
    (is_text && !has(verb, before)).then_some(before)
}

fn of_verb(error: &clap::Error) -> Option<String> {
    let refused = text(error, ContextKind::InvalidSubcommand)?;
    let known = VERBS.iter().find(|(names, _)| names.contains(&refused));
    let similar = || Some(format!("similar: {}", text(error, ContextKind::SuggestedSubcommand)?));
    known.map(|(_, hint)| (*hint).to_owned()).or_else(similar)
}

/// Whether a comparable program has this flag.
fn is_known(name: &str) -> bool {
    let mut flags = FLAGS.iter().map(|(peers, _)| *peers);
    flags.any(|peers| names(peers, name)) || ABSENT.iter().any(|(peers, _)| names(peers, name))
}

/// Whether a flag is in a list. Long names are compared without hyphens and underscores.
fn names(flags: &[&str], name: &str) -> bool {
    let plain = |name: &str| match name.strip_prefix("--") {
        Some(long) => format!("--{}", long.replace(['_', '-'], "").to_ascii_lowercase()),
        None => name.to_owned(),
    };
    let name = plain(name);
    flags.iter().any(|flag| plain(flag) == name)
}

/// Replaces underscores in long names by hyphens.
fn in_our_style(name: &str) -> String {
    if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() }
}

fn of_flag(name: &str, arguments: &[String]) -> Option<String> {
    let command = Arguments::command();
    let verb = arguments.iter().find_map(|argument| command.find_subcommand(argument))?;
    let called = verb.get_name();
    let takes = |id: &str| verb.get_positionals().any(|positional| positional.get_id() == id);
    if !name.starts_with('-') {
        let is_text = called == "generate" && !name.is_empty();
        return is_text.then(|| "the text goes behind --prompt".to_owned());
    }
    let name = in_our_style(name);
    if has(verb, &name) {
        return Some(format!("walla {called} calls it {name}"));
    }
    if names(MODEL, &name) && takes("model") {
        return Some(format!("the model file is no flag: walla {called} MODEL"));
    }
    if names(CONVERSATION, &name) {
        return Some("walla chat talks to a model".to_owned());
    }
    if takes("text") && ["-p", "--prompt", "--text", "--input"].contains(&name.as_str()) {
        let model = if takes("model") { "MODEL " } else { "" };
        return Some(format!("the text is no flag: walla {called} {model}TEXT"));
    }
    if called == "chat" && ["-p", "--prompt"].contains(&name.as_str()) {
        return Some("walla chat reads what you type, walla generate continues a --prompt".into());
    }
    let ours = FLAGS.iter().find(|(peers, _)| names(peers, &name)).map(|(_, ours)| *ours);
    if let Some(ours) = ours.and_then(|ours| ours.iter().find(|ours| has(verb, ours))) {
        return Some(format!("walla {called} calls it {ours}"));
    }
    let (_, why) = ABSENT.iter().find(|(peers, _)| names(peers, &name))?;
    ["generate", "chat", "bench"].contains(&called).then(|| (*why).to_owned())
}

/// Whether a verb has this flag.
fn has(verb: &clap::Command, name: &str) -> bool {
    verb.get_arguments().any(|argument| match name.strip_prefix("--") {
        Some(long) => argument.get_long() == Some(long),
        None => argument
            .get_short()
            .is_some_and(|short| name.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    })
}
