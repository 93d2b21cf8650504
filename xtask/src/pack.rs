//! `xtask pack`: programs as players and developers get them.
//!
//! A folder with the stripped program and the licences of everything in it, and an archive of the
//! folder. With the game `examples/packed_game` come its assets, a model, and kernel images. The
//! program is then started from another folder: a Windows program under wine.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::{cargo_command, kernels, metadata, platforms};

/// Consumer GPUs: GeForce 30, 40 and 50. Others compile the PTX that is in the program.
const CHIPS: &[&str] = &["sm_86", "sm_89", "sm_120"];
const USAGE: &str = "pack [game|command] [--windows] [--gpu] [--model FILE]";

/// A program to pack.
struct Program {
    package: &'static str,
    name: &'static str,
    features: &'static [&'static str],
}

const GAME: Program = Program { package: "walla_packed_game", name: "smithy", features: &[] };
const COMMAND: Program =
    Program { package: "walla", name: "walla", features: &["cuda", "pull", "remote"] };

/// What to pack.
struct Wanted {
    program: Program,
    features: Vec<&'static str>,
    /// For Windows, from Linux; otherwise for the system that builds.
    is_cross: bool,
    with_gpu: bool,
    /// The game's; otherwise the demo model.
    model: Option<PathBuf>,
}

impl Wanted {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut program, mut is_cross, mut with_gpu, mut model) = (GAME, false, false, None);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "game" => program = GAME,
                "command" => program = COMMAND,
                "--windows" => is_cross = cfg!(not(windows)),
                "--gpu" => with_gpu = true,
                "--model" => {
                    let path = arguments.next().ok_or("--model needs a file")?;
                    model = Some(checked_model(path)?);
                }
                other => return Err(format!("{other:?}: {USAGE}")),
            }
        }
        let mut features = program.features.to_vec();
        if with_gpu && !features.contains(&"cuda") {
            features.push("cuda");
        }
        Ok(Self { program, features, is_cross, with_gpu, model })
    }

    const fn is_windows(&self) -> bool {
        self.is_cross || cfg!(windows)
    }

    const fn archive_ending(&self) -> &'static str {
        if self.is_windows() { "zip" } else { "tar.gz" }
    }

    /// Arguments of cargo that select the package.
    fn line(&self, verb: &str) -> String {
        let Program { package, .. } = self.program;
        let features = self.features.join(",");
        format!("{verb} --package {package} --features={features}")
    }
}

/// Packs a program and starts it.
///
/// # Errors
/// A missing file, a failed command, or a program that answers something else.
pub fn run(arguments: &[String]) -> Result<(), String> {
    let wanted = Wanted::parse(arguments)?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let root = root.canonicalize().map_err(|e| e.to_string())?;
    let program = build(&root, &wanted)?;
    let system = if wanted.is_cross { "windows-x86_64".to_owned() } else { host() };
    let name = format!("{}-{system}", wanted.program.name);
    let packages = root.join("target/packages");
    // A failure leaves the earlier package as it is, and the model may be a file in it.
    let next = packages.join("next");
    let folder = next.join(&name);
    if next.exists() {
        fs::remove_dir_all(&next).map_err(at(&next))?;
    }
    let packed = folder.join(program.file_name().unwrap_or_default());
    copy(&program, &packed)?;
    for license in ["LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(license), &folder.join("licenses/walla").join(license))?;
    }
    let path = folder.join("licenses/third-party.txt");
    fs::write(&path, licenses(&wanted)?).map_err(at(&path))?;
    licenses_of_toolchain(&folder.join("licenses"), &wanted)?;
    if wanted.program.name == GAME.name {
        files_of_game(&root, &folder, &wanted)?;
        start(&packed, &wanted, &[], "What does a horseshoe cost?\n", "Greta: ")?;
    } else {
        start(&packed, &wanted, &["devices"], "", "cpu")?;
    }
    archive(&folder, &name, &wanted)?;
    if packages.join(&name).exists() {
        fs::remove_dir_all(packages.join(&name)).map_err(at(&packages))?;
    }
    for entry in fs::read_dir(&next).map_err(at(&next))?.flatten() {
        let to = packages.join(entry.file_name());
        fs::rename(entry.path(), &to).map_err(at(&to))?;
    }
    fs::remove_dir(&next).map_err(at(&next))?;
    report(&packages, &name, wanted.archive_ending())
}

/// The path of a model, if the file begins as one. Not resolved: its licence is next to the name
/// that was given.
fn checked_model(path: &str) -> Result<PathBuf, String> {
    let mut magic = [0; 4];
    let file = fs::File::open(path);
    let read = file.and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.map_err(|error| format!("{path}: {error}"))?;
    if &magic != b"GGUF" {
        return Err(format!("{path} is no GGUF file"));
    }
    std::path::absolute(path).map_err(|error| format!("{path}: {error}"))
}

/// The system that builds, as `linux-x86_64`.
fn host() -> String {
    format!("{}-{}", env::consts::OS, env::consts::ARCH)
}

/// Builds the program with the profile for players.
fn build(root: &Path, wanted: &Wanted) -> Result<PathBuf, String> {
    let line = wanted.line("build --profile packed");
    let flags = without_paths(root);
    let name = wanted.program.name;
    if wanted.is_cross {
        let target = "x86_64-pc-windows-gnu";
        let environment = platforms::prepare(&["windows"])?;
        // The standard library of `tools/cross/setup` has no bitcode for the linker.
        let line = format!("{line} --config profile.packed.lto=\"off\"");
        platforms::cargo(&environment, &line, &[target], &flags)?;
        return Ok(root.join(format!("target/cross/{target}/packed/{name}.exe")));
    }
    // The program is taken from where a build for this system puts it.
    let mut build = cargo_command(&line);
    let others = env::var("RUSTFLAGS").unwrap_or_default();
    let others = others.split_whitespace().map(ToOwned::to_owned);
    let all: Vec<String> = others.chain(flags).collect();
    build.env("CARGO_ENCODED_RUSTFLAGS", all.join("\x1f"));
    crate::run(build.env_remove("CARGO_BUILD_TARGET"))?;
    let target = crate::target_folder(&metadata("--no-deps")?)?;
    Ok(target.join("packed").join(format!("{name}{}", env::consts::EXE_SUFFIX)))
}

/// Flags that keep the folders of this machine out of the messages of panics.
fn without_paths(root: &Path) -> Vec<String> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(env::home_dir()?.join(".cargo")));
    let named = home.map(|home| (home, "/cargo")).into_iter().chain([(root.to_owned(), "/walla")]);
    named.map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())).collect()
}

/// The licences of the standard library, and of the C runtime in a program for Windows.
fn licenses_of_toolchain(folder: &Path, wanted: &Wanted) -> Result<(), String> {
    let files: Vec<(PathBuf, &str)> = if wanted.is_cross {
        vec![
            ("/usr/share/doc/rustc-web/copyright".into(), "rust.txt"),
            ("/usr/share/doc/mingw-w64-common/copyright".into(), "mingw-w64.txt"),
            ("/usr/share/doc/gcc-mingw-w64-base/copyright".into(), "gcc.txt"),
        ]
    } else {
        let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
        let sysroot = sysroot.map_err(|error| format!("rustc: {error}"))?.stdout;
        let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim());
        vec![(sysroot.join("share/doc/rust/COPYRIGHT-library.html"), "rust.html")]
    };
    for (from, to) in files {
        if from.exists() {
            copy(&from, &folder.join(to))?;
        } else {
            eprintln!("xtask: {} does not exist: add this licence", from.display());
        }
    }
    Ok(())
}

/// Assets, model and kernel images of the game.
fn files_of_game(root: &Path, folder: &Path, wanted: &Wanted) -> Result<(), String> {
    let demo = root.join("crates/walla_demo_model/walla-demo-q8_0.gguf");
    let model = wanted.model.clone().unwrap_or(demo);
    copy(&model, &folder.join("assets/greta.gguf"))?;
    license_of_model(&model, &folder.join("licenses/model.txt"))?;
    if !wanted.with_gpu {
        return Ok(());
    }
    let images = folder.join("walla_images").display().to_string();
    let line = ["--out".to_owned(), images, "--only".to_owned()].into_iter();
    kernels::run(&["--fetch".to_owned()])?;
    kernels::run(&line.chain(CHIPS.iter().map(ToString::to_string)).collect::<Vec<_>>())
}

/// The licences of all crates in the program, equal texts once.
fn licenses(wanted: &Wanted) -> Result<String, String> {
    // Procedural macros and build scripts are not in the program.
    let line = wanted.line("tree --edges normal,no-proc-macro --prefix none --format {p}|{l}");
    let mut tree = cargo_command(&line);
    if wanted.is_cross {
        tree.args(["--target", "x86_64-pc-windows-gnu"]);
    }
    let output = tree.output().map_err(|e| format!("{tree:?}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{tree:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata = metadata("--all-features")?;
    let packages: Vec<_> = metadata["packages"].as_array().into_iter().flatten().collect();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (package, license) = line.split_once('|').unwrap_or((line, ""));
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let version = version.trim_start_matches('v');
        let named = format!("{name} {version}");
        // A path in brackets: one of walla's crates, whose licences are in their own folder.
        let is_ours = words.next().is_some_and(|word| word.starts_with('(') && word != "(*)");
        if is_ours || list.insert(named.clone(), license.replace(" (*)", "")).is_some() {
            continue;
        }
        let package =
            packages.iter().copied().find(|p| p["name"] == name && p["version"] == version);
        let package = package.ok_or_else(|| format!("cargo's metadata lack {named}"))?;
        // Some crates have their text in another crate of the same repository.
        let repository = &package["repository"];
        let others = packages.iter().copied().filter(|p| p["repository"] == *repository);
        let others = others.filter(|_| !repository.is_null());
        let mut found = [package].into_iter().chain(others).map(texts_of);
        let found = found.find(|texts| !matches!(texts, Ok(texts) if texts.is_empty()));
        for text in found.unwrap_or(Ok(Vec::new()))? {
            texts.entry(text).or_default().push(named.clone());
        }
    }
    let mut all = format!("Parts of this program by others ({}):\n\n", list.len());
    list.iter().for_each(|(name, license)| all += &format!("{name}: {license}\n"));
    for (text, names) in texts {
        all += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
    }
    Ok(all)
}

/// The texts of licences in the folder of a package of cargo's metadata.
fn texts_of(package: &serde_json::Value) -> Result<Vec<String>, String> {
    let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
    let folder = manifest.parent().unwrap_or(manifest);
    const STARTS: [&str; 5] = ["LICEN", "UNLICENSE", "COPYING", "COPYRIGHT", "NOTICE"];
    let files = fs::read_dir(folder).map_err(at(folder))?.flatten();
    let is_license = |file: &fs::DirEntry| {
        let name = file.file_name().to_string_lossy().to_uppercase();
        STARTS.iter().any(|start| name.starts_with(start))
    };
    let text = |file: fs::DirEntry| fs::read_to_string(file.path()).ok();
    let texts = files.filter(is_license).filter_map(text);
    Ok(texts.map(|text| text.trim().to_owned()).collect())
}

/// Copies the licence that `walla pull` saved next to a model; the demo model has none.
fn license_of_model(model: &Path, to: &Path) -> Result<(), String> {
    let license = model.with_extension("license.txt");
    if license.exists() {
        return copy(&license, to);
    }
    let name = model.file_name().unwrap_or_default().display();
    let text = if model.ends_with("walla_demo_model/walla-demo-q8_0.gguf") {
        format!("{name}: public domain (CC0-1.0)\n")
    } else {
        eprintln!("xtask: {} does not exist: add the model's licence", license.display());
        return Ok(());
    };
    fs::write(to, text).map_err(at(to))
}

/// Starts the program from another folder; it has to end, and a line has to start with `answer`.
fn start(
    program: &Path,
    wanted: &Wanted,
    arguments: &[&str],
    input: &str,
    answer: &str,
) -> Result<(), String> {
    let mut command = Command::new(program);
    if wanted.is_cross {
        command = Command::new(platforms::folder().join("wine"));
        command.arg(program);
    }
    // As on the machine of a player.
    command.args(arguments).env_remove("CARGO_MANIFEST_DIR").current_dir(env::temp_dir());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let failed = |error| format!("{}: {error}", program.display());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut standard_input) = child.stdin.take() {
        standard_input.write_all(input.as_bytes()).map_err(failed)?;
    }
    let output = child.wait_with_output().map_err(failed)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let answered = answer.is_empty() || text.lines().any(|line| line.starts_with(answer));
    if !output.status.success() || !answered {
        return Err(format!("{} ended with {}: {text:?}", program.display(), output.status));
    }
    eprintln!("xtask: started from {}:\n{}", env::temp_dir().display(), text.trim());
    Ok(())
}

fn archive(folder: &Path, name: &str, wanted: &Wanted) -> Result<(), String> {
    let parent = folder.parent().unwrap_or(folder);
    let line = match (wanted.is_windows(), wanted.is_cross) {
        (false, _) => "tar -czf",
        (true, false) => "tar -acf",
        (true, true) => "python3 -m zipfile -c",
    };
    let archive = parent.join(format!("{name}.{}", wanted.archive_ending()));
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    crate::run(command.args(words).arg(&archive).arg(name).current_dir(parent))
}

/// Prints a table of sizes.
fn report(packages: &Path, name: &str, ending: &str) -> Result<(), String> {
    let (folder, archive) = (&packages.join(name), &packages.join(format!("{name}.{ending}")));
    let size = |path: &Path| path.metadata().map_err(at(path)).map(|its| its.len() as f64 / 1e6);
    println!("| file | MB |\n|---|---|");
    let mut files = crate::width::files(folder);
    files.sort();
    let mut all = 0.0;
    for path in &files {
        let inside = path.strip_prefix(folder).unwrap_or(path);
        all += size(path)?;
        println!("| {} | {:.2} |", inside.display(), size(path)?);
    }
    println!("| all | {all:.2} |\n| {} | {:.2} |", archive.display(), size(archive)?);
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let parent = to.parent().unwrap_or(to);
    fs::create_dir_all(parent).map_err(at(parent))?;
    fs::copy(from, to).map_err(at(from))?;
    Ok(())
}

fn at(path: &Path) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{}: {error}", path.display())
}
