//! Reference models with exact logits: see the README of the reference data.

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde_json::Value;
use walla_device::{Device, KvType};
use walla_exec::{Evaluator, ExecOptions, Executor, op_kinds};
use walla_model::spec::{Architecture, Mixer};
use walla_model::{Gguf, ModelSpec};
use walla_types::{SeqId, TokenId};

/// A model file, its reference logits, and the tolerances of an engine.
#[derive(Debug)]
pub struct OracleModel {
    /// File name without its extension.
    pub name: String,
    /// The GGUF file.
    pub path: PathBuf,
    /// The description.
    pub json: Value,
    /// Reference logits, `[rows, vocab]`.
    pub logits: Vec<f32>,
    /// Logits per row.
    pub vocab: usize,
}

/// One sequence of an oracle.
#[derive(Clone, Debug)]
pub struct OracleSequence {
    /// Its name in the reference data.
    pub id: String,
    /// The input.
    pub tokens: Vec<TokenId>,
    /// Positions whose logits are known.
    pub kept: Vec<usize>,
    /// Index of the first of their rows.
    pub first_row: usize,
    /// Context length to evaluate it with.
    pub context_tokens: u32,
    /// Sequences of one group are evaluated as one batch.
    pub group: Option<String>,
}

impl OracleSequence {
    /// Whether it is the sequence of a model that is neither trivial nor slow to evaluate.
    #[must_use]
    pub fn is_medium(&self) -> bool {
        matches!(self.id.as_str(), "len33" | "len70")
    }
}

/// A tolerance class: the values that an engine rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// None.
    Exact,
    /// Keys and values are rounded to f16.
    Half,
    /// Activations are rounded as well.
    Rounded,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Half => "half",
            Self::Rounded => "rounded",
        }
    }
}

/// Differences between an engine's logits and the reference, over many rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Differences {
    /// Largest absolute difference.
    pub max_abs: f64,
    /// Largest difference in the reference between its best logit and the logit of the engine's
    /// best token.
    pub max_regret: f64,
    squares: f64,
    numbers: usize,
}

impl Differences {
    /// Adds a row.
    pub fn add(&mut self, truth: &[f32], row: &[f32]) {
        assert_eq!(truth.len(), row.len());
        for (&t, &r) in truth.iter().zip(row) {
            let difference = f64::from(r) - f64::from(t);
            // NaN must not count as a small difference.
            assert!(difference.is_finite(), "a logit is not finite");
            self.max_abs = self.max_abs.max(difference.abs());
            self.squares += difference * difference;
        }
        self.numbers += row.len();
        let best = |row: &[f32]| row.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        if let (Some((_, best_truth)), Some((chosen, _))) = (best(truth), best(row)) {
            self.max_regret = self.max_regret.max(f64::from(best_truth - truth[chosen]));
        }
    }

    /// Adds the rows of another collection.
    pub fn add_all(&mut self, other: &Self) {
        self.max_abs = self.max_abs.max(other.max_abs);
        self.max_regret = self.max_regret.max(other.max_regret);
        self.squares += other.squares;
        self.numbers += other.numbers;
    }

    /// Accepts a near-tie: the regret of a model in the list counts as none if it is below its gap.
    pub fn accept_near_tie(&mut self, model: &OracleModel, ties: &[(&str, f64)]) {
        let tie = ties.iter().find(|(name, _)| *name == model.name);
        if tie.is_some_and(|(_, gap)| self.max_regret < *gap) {
            self.max_regret = 0.0;
        }
    }

    /// Root mean square.
    #[must_use]
    pub fn rms(&self) -> f64 {
        (self.squares / self.numbers.max(1) as f64).sqrt()
    }
}

/// All oracle models that are here, in order of name: the models of this repository, and every
/// architecture and tensor type if the reference data is next to the checkout. The newer models of
/// the reference data are left out if their architecture has no builder.
#[must_use]
pub fn oracle_models() -> Vec<OracleModel> {
    let has_all = walla_reference_test::has_reference_data!();
    let [here, beside] = crate::FOLDERS.map(Path::new);
    let mut folders = vec![here.join("models")];
    if has_all {
        folders.extend([beside.join("models"), beside.join("models_2026")]);
    }
    let mut paths = BTreeMap::new();
    for folder in folders {
        let files = fs::read_dir(folder).expect("the folder of models can be read");
        let files = files.map(|file| file.expect("the folder of models can be read").path());
        let models = files.filter(|path| path.extension().is_some_and(|ending| ending == "gguf"));
        paths.extend(models.map(|path| (path.file_name().map(ToOwned::to_owned), path)));
    }
    let mut models: Vec<_> = paths.into_values().map(OracleModel::read).collect();
    models.retain(|model| Architecture::from_name(model.architecture()).is_some());
    let minimum = if has_all { 45 } else { 10 };
    assert!(models.len() >= minimum, "every architecture is there: {}", models.len());
    models
}

/// An evaluator of a file for this number of sequences, tokens of each, and rows of a step.
///
/// # Panics
/// If the model does not load.
#[must_use]
pub fn evaluator(
    file: &Gguf,
    device: Box<dyn Device>,
    sequences: u32,
    context_tokens: u32,
    rows: u32,
    kv_type: KvType,
) -> Evaluator {
    let model = ModelSpec::from_gguf(file, context_tokens).expect("the model is supported");
    let options = ExecOptions {
        max_sequences: sequences,
        context_tokens,
        max_rows: rows,
        max_outputs: rows,
        max_logits_rows: rows,
        kv_type,
        ..ExecOptions::default()
    };
    let options = options.with_full_pages();
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let executor = Executor::load(device, file, &model, options, go_on).expect("it loads");
    Evaluator::new(executor).expect("capacities make a ledger")
}

impl OracleModel {
    fn read(path: PathBuf) -> Self {
        let text =
            fs::read_to_string(path.with_extension("json")).expect("a model has a description");
        let json: Value = serde_json::from_str(&text).expect("the description is JSON");
        let bytes = fs::read(path.with_extension("logits.f32")).expect("a model has logits");
        let numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let vocab = json["logits"]["cols"].as_u64().expect("logits have columns") as usize;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self { name, json, logits: numbers.collect(), vocab, path }
    }

    /// The name of its architecture.
    #[must_use]
    pub fn architecture(&self) -> &str {
        self.json["arch"].as_str().expect("a model has an architecture")
    }

    /// The model's sequences.
    #[must_use]
    pub fn sequences(&self) -> Vec<OracleSequence> {
        // A missing or renamed key must not count as an empty list.
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        let list = |s: &Value, key: &str| -> Vec<usize> {
            let numbers = s[key].as_array().unwrap_or_else(|| panic!("{}: {key}", self.name));
            numbers.iter().map(number).collect()
        };
        let sequence = |s: &Value| OracleSequence {
            id: s["id"].as_str().expect("a sequence has a name").to_owned(),
            tokens: list(s, "tokens").into_iter().map(|id| TokenId(id as u32)).collect(),
            kept: list(s, "kept"),
            first_row: number(&s["first_row"]),
            context_tokens: number(&s["n_ctx"]) as u32,
            group: s["group"].as_str().map(str::to_owned),
        };
        let sequences = self.json["sequences"].as_array().expect("a model has sequences");
        assert!(!sequences.is_empty(), "{}", self.name);
        sequences.iter().map(sequence).collect()
    }

    /// The limits of a class: maximum difference, rms, regret.
    #[must_use]
    pub fn tolerance(&self, class: Class) -> (f64, f64, f64) {
        let limits = &self.json["tolerance"][class.name()];
        let limit = |name: &str| limits[name].as_f64().expect("a class has three limits");
        (limit("max_abs"), limit("rms"), limit("max_regret"))
    }

    /// Whether `differences` are within the limits of the class. `times` multiplies the limits of
    /// the largest difference and of the rms; the limit of the regret is not multiplied.
    ///
    /// # Errors
    /// One line with the differences and their limits.
    pub fn within(
        &self,
        class: Class,
        times: (f64, f64),
        differences: &Differences,
        how: &str,
    ) -> Result<(), String> {
        let (max_abs, rms, max_regret) = self.tolerance(class);
        let (max_abs, rms) = (times.0 * max_abs, times.1 * rms);
        let within = differences.max_abs <= max_abs
            && differences.rms() <= rms
            && differences.max_regret <= max_regret;
        if within {
            return Ok(());
        }
        Err(format!(
            "{} {how}: max {} (limit {max_abs}), rms {} (limit {rms}), regret {} (limit {max_regret})",
            self.name,
            differences.max_abs,
            differences.rms(),
            differences.max_regret
        ))
    }

    /// Panics if `differences` are beyond the class.
    pub fn assert_within(&self, class: Class, differences: &Differences, how: &str) {
        let within = self.within(class, (1.0, 1.0), differences, how);
        assert!(within.is_ok(), "{}", within.unwrap_err());
    }

    /// The reference row of a sequence at a position, if it is stored.
    #[must_use]
    pub fn truth(&self, sequence: &OracleSequence, position: usize) -> Option<&[f32]> {
        let index = sequence.kept.iter().position(|&kept| kept == position)?;
        let row = sequence.first_row + index;
        self.logits.get(row * self.vocab..(row + 1) * self.vocab)
    }

    /// The model on a device, with capacity for `sequences` sequences of `context_tokens` tokens
    /// and steps of `rows` rows.
    #[must_use]
    pub fn evaluator(
        &self,
        device: Box<dyn Device>,
        sequences: u32,
        context_tokens: u32,
        rows: u32,
        kv_type: KvType,
    ) -> Evaluator {
        let file = Gguf::open(&self.path).expect("the file is valid");
        evaluator(&file, device, sequences, context_tokens, rows, kv_type)
    }

    /// Whether the model has a tensor of such a type.
    ///
    /// # Panics
    /// If the reference lists no types.
    #[must_use]
    pub fn has_types(&self, is_wanted: fn(&str) -> bool) -> bool {
        let types = self.json["tensor_types"].as_object().expect("types are listed");
        types.keys().any(|name| is_wanted(name))
    }

    /// The class of an engine that rounds the input of quantised products to 8 bits, as llama.cpp
    /// does, and keys and values to f16.
    #[must_use]
    pub fn class_of_rounding(&self) -> Class {
        if self.has_types(|name| name.starts_with('Q')) { Class::Rounded } else { Class::Half }
    }

    /// Whether a device has all kinds of ops of the model.
    #[must_use]
    pub fn runs_on(&self, device: &dyn Device) -> bool {
        let file = Gguf::open(&self.path).expect("the file is valid");
        let model = ModelSpec::from_gguf(&file, 1).expect("the model is supported");
        op_kinds(&model).into_iter().all(|kind| device.runs(kind))
    }

    /// The longest context in which no score of the model grows with the position; `None`: any.
    #[must_use]
    pub fn unscaled_context(&self) -> Option<u32> {
        let file = Gguf::open(&self.path).expect("the file is valid");
        let model = ModelSpec::from_gguf(&file, 1).expect("the model is supported");
        let scale = model.layers.iter().find_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => attention.position_scale,
            Mixer::ShortConv(_) | Mixer::DeltaNet(_) => None,
        });
        scale.map(|scale| scale.period_tokens)
    }

    /// As [`by_context`](Self::by_context), without the sequences that are longer than
    /// [`unscaled_context`](Self::unscaled_context), and in such a context.
    #[must_use]
    pub fn by_unscaled_context(&self) -> Vec<(u32, Vec<OracleSequence>)> {
        let Some(context) = self.unscaled_context() else { return self.by_context() };
        let mut sequences = self.sequences();
        sequences.retain(|sequence| sequence.tokens.len() <= context as usize);
        assert!(!sequences.is_empty(), "{}", self.name);
        vec![(context, sequences)]
    }

    /// The sequences, grouped by context length in order of first appearance.
    #[must_use]
    pub fn by_context(&self) -> Vec<(u32, Vec<OracleSequence>)> {
        let mut groups: Vec<(u32, Vec<OracleSequence>)> = Vec::new();
        for sequence in self.sequences() {
            match groups.iter_mut().find(|(context, _)| *context == sequence.context_tokens) {
                Some((_, group)) => group.push(sequence),
                None => groups.push((sequence.context_tokens, vec![sequence])),
            }
        }
        groups
    }

    /// Logits after every token of sequences that are evaluated together, `[tokens, vocab]` for
    /// each. The sequences are removed afterwards.
    ///
    /// A step takes at most `max_tokens` tokens of a sequence, and at most the evaluator's maximum
    /// number of rows.
    #[must_use]
    pub fn logits(
        &self,
        evaluator: &mut Evaluator,
        sequences: &[OracleSequence],
        max_tokens: usize,
    ) -> Vec<Vec<f32>> {
        let room = |s: &OracleSequence| vec![f32::NAN; s.tokens.len() * self.vocab];
        let mut logits: Vec<Vec<f32>> = sequences.iter().map(room).collect();
        let longest = sequences.iter().map(|s| s.tokens.len()).max().unwrap_or(0);
        for start in (0..longest).step_by(max_tokens) {
            let part = |(index, s): (usize, &OracleSequence)| {
                let end = s.tokens.len().min(start.saturating_add(max_tokens));
                (start < end).then_some((SeqId(index as u32), start..end))
            };
            let parts: Vec<_> = sequences.iter().enumerate().filter_map(part).collect();
            let tokens = |seq: SeqId, range| &sequences[seq.0 as usize].tokens[range];
            let inputs: Vec<_> =
                parts.iter().map(|(seq, range)| (*seq, tokens(*seq, range.clone()))).collect();
            let sink = &mut |index: usize, token: usize, row: &[f32]| {
                let first = (start + token) * self.vocab;
                let sequence = inputs[index].0.0 as usize;
                logits[sequence][first..first + self.vocab].copy_from_slice(row);
            };
            evaluator.append(&inputs, sink).expect("the batch is valid");
        }
        for index in 0..sequences.len() {
            let seq = SeqId(index as u32);
            evaluator.sequences().remove(seq).expect("a sequence can be forgotten");
        }
        logits
    }

    /// Evaluates sequences together and compares every stored row.
    #[must_use]
    pub fn compare(&self, evaluator: &mut Evaluator, sequences: &[OracleSequence]) -> Differences {
        let logits = self.logits(evaluator, sequences, usize::MAX);
        let mut differences = Differences::default();
        for (sequence, logits) in sequences.iter().zip(&logits) {
            for (position, row) in logits.chunks_exact(self.vocab).enumerate() {
                if let Some(truth) = self.truth(sequence, position) {
                    differences.add(truth, row);
                }
            }
        }
        let kept: usize = sequences.iter().map(|s| s.kept.len()).sum();
        assert_eq!(differences.numbers, kept * self.vocab, "{}: all that is known", self.name);
        assert!(kept > 0, "{}: nothing to compare", self.name);
        differences
    }

    /// Evaluates every sequence alone and then all of them together. Returns the differences of
    /// each, with its name.
    #[must_use]
    pub fn compare_all(
        &self,
        evaluator: &mut Evaluator,
        sequences: &[OracleSequence],
    ) -> Vec<(String, Differences)> {
        let mut all: Vec<_> = sequences
            .iter()
            .map(|sequence| {
                let differences = self.compare(evaluator, std::slice::from_ref(sequence));
                (format!("{} alone", sequence.id), differences)
            })
            .collect();
        all.push(("all together".to_owned(), self.compare(evaluator, sequences)));
        all
    }

    /// As [`compare_all`](Self::compare_all); prints the largest differences, and panics if one of
    /// them is beyond the class.
    pub fn assert_all_within(
        &self,
        class: Class,
        evaluator: &mut Evaluator,
        sequences: &[OracleSequence],
        how: &str,
    ) {
        let mut all = Differences::default();
        for (name, differences) in self.compare_all(evaluator, sequences) {
            self.assert_within(class, &differences, &format!("{how} {name}"));
            all.add_all(&differences);
        }
        let Differences { max_abs, max_regret, .. } = all;
        println!("{} {how}: max {max_abs:.6}, rms {:.6}, {max_regret:.4}", self.name, all.rms());
    }
}

impl OracleModel {
    /// Panics if the logits of sequences depend in any bit on the batch composition: one token of
    /// each per step, seven, or as many as fit; alone or together.
    pub fn assert_same_bits_in_any_batch(
        &self,
        evaluator: &mut Evaluator,
        sequences: &[OracleSequence],
        how: &str,
    ) {
        let alone: Vec<_> = sequences
            .iter()
            .map(|s| bits(&self.logits(evaluator, std::slice::from_ref(s), 64)[0]))
            .collect();
        for tokens in [1, 7, 64] {
            let together = self.logits(evaluator, sequences, tokens);
            for ((sequence, alone), together) in sequences.iter().zip(&alone).zip(&together) {
                let same = *alone == bits(together);
                assert!(same, "{} {how} {}: {tokens} tokens at once", self.name, sequence.id);
            }
        }
        let Some(place) = sequences.iter().position(OracleSequence::is_medium) else { return };
        for tokens in [1, 7, 37] {
            let cut = &self.logits(evaluator, &sequences[place..=place], tokens)[0];
            assert!(alone[place] == bits(cut), "{} {how}: {tokens} tokens at once", self.name);
        }
    }
}

/// Bit patterns of floating-point numbers, which also distinguish values that `==` does not.
#[must_use]
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}
