//! Cache of step costs across runs.
//!
//! One file per device, model and engine shape:
//! ```json
//! ["walla step cost 2", "cpu|avx512vnni|2 threads|…|walla 0.1.0|…",
//!  [1, 2, 3, 4, …], [310.5, 322.0, …], [0.05, 0.0, 0.0002, 0.0, 0.0]]
//! ```
//! These are format, key, rows of the buckets, their microseconds, and [`Rates`].

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use walla_device::DeviceInfo;
use walla_exec::{ExecOptions, Executor};
use walla_model::ModelSpec;
use walla_plan::governor::Rates;
use walla_plan::{BUCKETS, StepCost};

use crate::replace::replace;

const FORMAT: &str = "walla step cost 2";

/// Maximum length of a valid file.
const MAX_BYTES: u64 = 16 << 10;

/// Parameters on which costs depend.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    /// Device, model and shape. Each has its own file.
    what: String,
    /// Build of the programs. Costs of another build replace the file.
    build: String,
}

impl Key {
    pub(super) fn new(model: &ModelSpec, file_bytes: u64, executor: &Executor) -> Self {
        Self::of(model, file_bytes, executor.device().info(), executor.options())
    }

    pub(super) fn of(
        model: &ModelSpec,
        file_bytes: u64,
        info: &DeviceInfo,
        options: &ExecOptions,
    ) -> Self {
        let name = model.name.as_deref().unwrap_or_default();
        // A part of the GPU's multiprocessors counts as a different device.
        let used = info.gpu.as_ref().map(|gpu| (gpu.multiprocessors_used, gpu.multiprocessors));
        let part = used.filter(|(used, all)| used < all);
        let part = part.map(|(used, all)| format!("{used} of {all}|")).unwrap_or_default();
        let what = format!(
            "{}|{}|{part}{}|{} threads|{}|{name}|{} layers|{} wide|{} tokens|{file_bytes} bytes|{} rows|{} context|{:?}",
            info.name,
            info.description,
            info.variant,
            info.threads,
            model.architecture.name(),
            model.layers.len(),
            model.width,
            model.vocab,
            options.max_rows,
            options.context_tokens,
            options.kv_type,
        );
        let gpu = info.gpu.as_ref();
        let image = gpu.map_or("", |gpu| &gpu.kernel_image);
        let launched = if gpu.is_some_and(|gpu| gpu.graphs_off.is_some()) { "eager" } else { "" };
        let build = format!("walla {}|{image}|{launched}", env!("CARGO_PKG_VERSION"));
        Self { what, build }
    }

    fn text(&self) -> String {
        format!("{}|{}", self.what, self.build)
    }
}

fn path(folder: &Path, key: &Key) -> PathBuf {
    // The file also contains the key, so a collision only costs a measurement.
    let hash = walla_types::fnv1a(walla_types::FNV1A, key.what.as_bytes());
    folder.join(format!("cost-{hash:016x}.json"))
}

/// The cached costs of a key. An unusable file counts as missing.
pub(super) fn load(folder: &Path, key: &Key) -> Option<StepCost> {
    let path = path(folder, key);
    let bytes = fs::metadata(&path).ok()?.len();
    let text = if bytes <= MAX_BYTES { fs::read_to_string(&path) } else { Ok(String::new()) };
    let cost = text.ok().and_then(|text| parse(&text, &key.text()));
    if cost.is_none() {
        tracing::warn!(target: "walla::load", file = %path.display(), "step costs cannot be used; they are measured again");
    }
    cost
}

/// Saves costs, if the folder is writable. The new file is written next to the old one and renamed,
/// so that a crash or a power failure leaves the old or the new file.
pub(super) fn save(folder: &Path, key: &Key, cost: &StepCost) {
    let path = path(folder, key);
    let text = text(&key.text(), cost);
    let write = |file: &mut File| file.write_all(text.as_bytes());
    let saved = fs::create_dir_all(folder).and_then(|()| replace(&path, write, |error| error));
    if let Err(error) = saved {
        tracing::warn!(target: "walla::load", file = %path.display(), %error, "step costs are not kept");
    }
}

fn text(key: &str, cost: &StepCost) -> String {
    let file = (FORMAT, key, BUCKETS, cost.bucket_micros(), cost.rates().to_array());
    // Cannot fail: there is no map and no writer. An empty file would count as missing.
    serde_json::to_string(&file).unwrap_or_default()
}

/// The costs in a file of this key.
fn parse(text: &str, key: &str) -> Option<StepCost> {
    type File = (String, String, [u32; BUCKETS.len()], [f32; BUCKETS.len()], [f32; 5]);
    let (format, of, buckets, micros, rates): File = serde_json::from_str(text).ok()?;
    let is_valid = format == FORMAT && of == key && buckets == BUCKETS;
    is_valid.then(|| StepCost::new(micros, Rates::from_array(rates)).ok())?
}

#[cfg(test)]
mod tests {
    use walla_device::{DeviceKind, GpuFacts};
    use walla_doubles::synth::{self, Mixture, Model};
    use walla_model::Gguf;
    use walla_plan::LinearCost;

    use super::*;

    fn key(what: &str, build: &str) -> Key {
        Key { what: what.into(), build: build.into() }
    }

    fn cost() -> StepCost {
        StepCost::from_linear(LinearCost {
            step_micros: 310.567,
            row_micros: 7.125,
            context_token_micros: 0.012_345,
            prefill_token_micros: 1e-7,
        })
    }

    #[test]
    fn saved_costs_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("not there yet");
        assert_eq!(load(&folder, &key("a|b", "1")), None);
        save(&folder, &key("a|b", "1"), &cost());
        assert_eq!(load(&folder, &key("a|b", "1")), Some(cost()));
        assert_eq!(load(&folder, &key("a|c", "1")), None, "another device or model");
        assert_eq!(load(&folder, &key("a|b", "2")), None, "another build");
        save(&folder, &key("a|b", "2"), &cost());
        assert_eq!(load(&folder, &key("a|b", "2")), Some(cost()));
        assert_eq!(load(&folder, &key("a|b", "1")), None, "replaced");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside");
    }

    #[test]
    fn costs_are_valid_for_one_build_on_one_device() {
        let bytes = synth::write(&Model::TINY, Mixture::Q8_0, 7, Vec::new()).unwrap();
        let file = Gguf::from_static(bytes.leak()).unwrap();
        let model = ModelSpec::from_gguf(&file, 128).unwrap();
        let gpu = GpuFacts { kernel_image: "sm_90".into(), ..GpuFacts::default() };
        let info = DeviceInfo {
            name: "gpu:0".into(),
            kind: DeviceKind::Cuda,
            description: "a card".into(),
            variant: "sm_90".into(),
            threads: 1,
            memory_total_bytes: None,
            memory_free_bytes: None,
            gpu: Some(gpu.clone()),
            facts: Vec::new(),
        };
        let options = ExecOptions::default();
        let of = |gpu: GpuFacts, options: &ExecOptions| {
            Key::of(&model, 1, &DeviceInfo { gpu: Some(gpu), ..info.clone() }, options)
        };
        let key = of(gpu.clone(), &options);
        assert!(key.build.starts_with(concat!("walla ", env!("CARGO_PKG_VERSION"), "|")));
        let other = of(GpuFacts { kernel_image: "sm_90a\nbetter".into(), ..gpu.clone() }, &options);
        assert!(other.what == key.what && other.build != key.build, "{other:?}");
        let text = text(&other.text(), &cost());
        assert_eq!(parse(&text, &other.text()), Some(cost()), "a key of two lines");
        let other = of(GpuFacts { graphs_off: Some("asked".into()), ..gpu.clone() }, &options);
        assert!(other.what == key.what && other.build != key.build, "{other:?}");
        let other = of(gpu, &ExecOptions { context_tokens: options.context_tokens * 2, ..options });
        assert_ne!(other.what, key.what);
    }

    #[test]
    fn a_damaged_file_counts_as_missing() {
        let whole = text("key", &cost());
        assert!(parse(&whole, "key").is_some());
        for end in 0..whole.len() {
            assert!(parse(&whole[..end], "key").is_none(), "{end}");
        }
        for (from, to) in [
            ("walla step cost 2", "walla step cost 1"),
            ("],[", "],[NaN,"),
            ("],[", "],[-"),
            ("]]", ",1e999]]"),
            ("[1,", "[9,"),
            (",512]", ",512,768]"),
            ("]]", ",4]]"),
        ] {
            assert!(whole.contains(from));
            assert!(parse(&whole.replacen(from, to, 1), "key").is_none(), "{from} {to}");
        }
        assert!(parse(&format!("{whole}more"), "key").is_none());
    }

    #[test]
    fn a_file_that_is_too_long_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let key = key("a|b", "1");
        let file = path(folder.path(), &key);
        fs::write(&file, text(&key.text(), &cost()) + &" ".repeat(MAX_BYTES as usize)).unwrap();
        assert_eq!(load(folder.path(), &key), None);
    }

    /// A process that crashed while writing leaves a part of the new file. Later runs neither read
    /// it nor fail.
    #[test]
    fn a_crash_during_a_write_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let key = key("a|b", "1");
        save(folder.path(), &key, &cost());
        let whole = text(&key.text(), &cost());
        for end in [0, 1, whole.len() / 2, whole.len() - 1] {
            let beside = path(folder.path(), &key).with_extension("1.new");
            fs::write(&beside, &whole[..end]).unwrap();
            assert_eq!(load(folder.path(), &key), Some(cost()));
        }
        save(folder.path(), &key, &cost());
        assert_eq!(load(folder.path(), &key), Some(cost()));
    }
}
