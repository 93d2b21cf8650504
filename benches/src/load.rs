//! Loading a model file on the CPU device: time and peak memory, with the file in the page cache.
//!
//! Each load runs in a separate process, so that the peak of its resident memory belongs to this
//! load alone.
//!
//! ```text
//! cargo run --release -p walla_benches --bin load
//! ```

use std::error::Error;
use std::fs::File;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Parser;
use serde_json::{Value, json};
use walla_benches::{machine, output, synthetic as synthetic_file};
use walla_device::OpenOptions;
use walla_exec::{ExecOptions, Executor};
use walla_model::{Gguf, ModelSpec};

/// Measures time and memory of loading a model on the CPU.
#[derive(Debug, Parser)]
struct Args {
    /// Synthetic models, `SHAPE:TYPES`; files in the system's folder for temporary files, kept for
    /// the next run.
    #[arg(long, value_delimiter = ',', default_value = "qwen3-0.6b:q8_0,llama-3.2-1b:q4_k_m")]
    synth: Vec<String>,
    /// Model files.
    #[arg(long, value_delimiter = ',')]
    files: Vec<PathBuf>,
    /// Loads of each file.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Threads of the CPU device.
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Another build of this program, run alternately with this one.
    #[arg(long)]
    before: Option<PathBuf>,
    /// The commit, if git is not available.
    #[arg(long)]
    commit: Option<String>,
    /// Output file for the numbers as JSON.
    #[arg(long)]
    output: Option<PathBuf>,
    /// Loads this file once and prints the numbers.
    #[arg(long, hide = true)]
    child: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    if let Some(path) = &args.child {
        println!("{}", load(path, args.threads)?);
        return Ok(());
    }
    let mut files = args.files.clone();
    #[cfg(feature = "demo")]
    files.insert(0, demo()?);
    for name in &args.synth {
        files.push(synthetic_file(name)?);
    }
    if let Some(path) = &args.output {
        output::check(path, &files)?;
    }
    let mut programs = vec![("now", std::env::current_exe()?)];
    programs.extend(args.before.iter().map(|path| ("before", path.clone())));
    let mut rows = Vec::new();
    for file in &files {
        // Into the page cache.
        std::io::copy(&mut File::open(file)?, &mut std::io::sink())?;
        let mut loads: Vec<Vec<Value>> = vec![Vec::new(); programs.len()];
        for _ in 0..args.rounds {
            for ((_, program), loads) in programs.iter().zip(&mut loads) {
                loads.push(child(program, file, args.threads)?);
            }
        }
        for ((build, _), loads) in programs.iter().zip(&loads) {
            let row = summary(build, file, loads)?;
            print(&row);
            rows.push(row);
        }
    }
    if let Some(path) = &args.output {
        let report = json!({
            "machine": machine::facts(args.commit.as_deref()),
            "threads": args.threads,
            "rounds": args.rounds,
            "loads": rows,
        });
        output::replace(path, serde_json::to_string_pretty(&report)? + "\n")?;
    }
    Ok(())
}

/// The demo model as a file.
#[cfg(feature = "demo")]
fn demo() -> Result<PathBuf, Box<dyn Error>> {
    let bevy_walla::options::ModelSource::Static(bytes) = bevy_walla::options::ModelSource::demo()
    else {
        return Err("the demo model is part of the program".into());
    };
    let path = std::env::temp_dir().join("walla-demo.gguf");
    output::replace(&path, bytes)?;
    Ok(path)
}

fn child(program: &Path, file: &Path, threads: u32) -> Result<Value, Box<dyn Error>> {
    let output = Command::new(program)
        .arg("--child")
        .arg(file)
        .args(["--threads", &threads.to_string()])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// One load, in this process.
fn load(path: &Path, threads: u32) -> Result<Value, Box<dyn Error>> {
    let options = ExecOptions {
        max_sequences: 4,
        max_rows: 32,
        max_outputs: 4,
        context_tokens: 256,
        ..ExecOptions::default()
    };
    let open = OpenOptions { threads: Some(threads), ..OpenOptions::default() };
    let device = walla_runtime::default_registry().open("cpu", &open)?;
    let before = machine::memory_bytes("VmRSS:")?;
    let processor_before = processor_ms()?;
    let start = Instant::now();
    let file = Gguf::open(path)?;
    let model = ModelSpec::from_gguf(&file, options.context_tokens)?;
    let opened = start.elapsed();
    let go_on = &mut |_: f32| ControlFlow::Continue(());
    let executor = Executor::load(device, &file, &model, options.with_full_pages(), go_on)?;
    let loaded = start.elapsed();
    let processor_ms = processor_ms()? - processor_before;
    let peak = machine::memory_bytes("VmHWM:")?;
    drop(file);
    Ok(json!({
        "open_ms": opened.as_secs_f64() * 1e3,
        "load_ms": loaded.as_secs_f64() * 1e3,
        "processor_ms": processor_ms,
        "peak_bytes": peak - before,
        "after_bytes": machine::memory_bytes("VmRSS:")?.saturating_sub(before),
        "weight_bytes": executor.device().memory().weight_bytes,
    }))
}

/// Processor time of this process, in steps of 10 ms. It is less noisy than a clock on a machine
/// with other work.
fn processor_ms() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name, in parentheses, is the second field; user and system time are fields 14 and 15, in
    // hundredths of a second.
    let fields = stat.rsplit_once(')').ok_or("no such field")?.1.split_whitespace();
    let ticks: Result<Vec<u64>, _> = fields.skip(11).take(2).map(str::parse).collect();
    Ok(ticks?.iter().sum::<u64>() as f64 * 10.0)
}

fn summary(build: &str, file: &Path, loads: &[Value]) -> Result<Value, Box<dyn Error>> {
    let sorted = |name: &str| {
        let mut numbers: Vec<f64> = loads.iter().filter_map(|load| load[name].as_f64()).collect();
        numbers.sort_by(f64::total_cmp);
        numbers
    };
    let median = |name: &str| sorted(name).get(loads.len() / 2).copied();
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(json!({
        "model": name,
        "build": build,
        "file_bytes": std::fs::metadata(file)?.len(),
        "weight_bytes": median("weight_bytes"),
        "open_ms_median": median("open_ms"),
        "load_ms_min": sorted("load_ms").first(),
        "load_ms_median": median("load_ms"),
        "load_ms": sorted("load_ms"),
        "processor_ms_min": sorted("processor_ms").first(),
        "processor_ms_median": median("processor_ms"),
        "peak_bytes_median": median("peak_bytes"),
        "after_bytes_median": median("after_bytes"),
    }))
}

fn print(row: &Value) {
    let ms = |name: &str| row[name].as_f64().unwrap_or(f64::NAN);
    let mib = |name: &str| row[name].as_f64().unwrap_or(f64::NAN) / f64::from(1 << 20);
    println!(
        "| {} | {} | {:.0} | {:.1} | {:.0} / {:.0} | {:.0} / {:.0} | {:.0} | {:.0} | {:.0} |",
        row["model"].as_str().unwrap_or_default(),
        row["build"].as_str().unwrap_or_default(),
        mib("file_bytes"),
        ms("open_ms_median"),
        ms("load_ms_min"),
        ms("load_ms_median"),
        ms("processor_ms_min"),
        ms("processor_ms_median"),
        mib("weight_bytes"),
        mib("peak_bytes_median"),
        mib("after_bytes_median"),
    );
}
