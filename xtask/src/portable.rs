//! Arithmetic with the same bits on all platforms: texts, plans and recordings depend on it.
//!
//! The methods of `f32` and `f64` for exponentials, angles and the like are functions of the
//! platform's C library, which differ in the last bits. The crate `libm` computes them equally
//! everywhere.

use std::path::Path;

/// Where results depend on numbers. Elsewhere they are shown to people, or compared with bounds.
const FOLDERS: &[&str] = &[
    "crates/walla_cpu/src",
    "crates/walla_embed/src",
    "crates/walla_exec/src",
    "crates/walla_grammar/src",
    "crates/walla_memory/src",
    "crates/walla_model/src",
    "crates/walla_plan/src",
    "crates/walla_record/src",
    "crates/walla_router/src",
    "crates/walla_runtime/src",
    "crates/walla_types/src",
    // Weights of models and times of simulations.
    "tests/doubles/src",
];

/// `sqrt`, `mul_add`, `powi` and roundings are exact or the compiler's.
const METHODS: &[&str] = &[
    "exp", "exp2", "exp_m1", "ln", "ln_1p", "log2", "log10", "powf", "cbrt", "sin", "cos",
    "sin_cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "hypot",
];

/// Looks for the methods in code that is not for tests.
///
/// # Errors
/// All places, one line each.
pub fn check() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = Vec::new();
    for path in FOLDERS.iter().flat_map(|folder| crate::width::files(&root.join(folder))) {
        let is_test = path.iter().any(|part| part == "tests" || part == "tests.rs");
        if is_test || path.extension().is_none_or(|end| end != "rs") {
            continue;
        }
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        found.extend(places(&text).into_iter().map(|(line, method)| {
            format!("{}:{line}: `{method}` differs by platform: use `libm`", path.display())
        }));
    }
    if found.is_empty() {
        eprintln!("xtask: no result depends on the platform's C library");
        return Ok(());
    }
    Err(found.join("\n"))
}

/// Lines with such a method.
fn places(text: &str) -> Vec<(usize, &'static str)> {
    let calls = |code: &str, method: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let named = ["f32", "f64"].into_iter().any(|number| {
            code.split(&format!("{number}::{method}")).skip(1).any(ends) // also as an argument
        });
        named || code.contains(&format!(".{method}("))
    };
    let lines = crate::count::production(text).into_iter();
    lines
        .flat_map(|(line, code)| {
            METHODS.iter().filter(move |method| calls(&code, method)).map(move |&its| (line, its))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_in_code_only() {
        let text = "fn f(x: f32) -> f32 {\n    x.exp() + x.powf(2.0) // x.ln()\n}\n\
                    fn g(x: f32) -> f32 { Some(x).map_or(1.0, f32::tanh) }\n\
                    fn h(x: f32) -> f32 { libm::expf(x) + x.sqrt() + x.exposure() + x.sin }\n\
                    #[cfg(test)]\nmod tests {\n    fn i(x: f64) -> f64 { x.sin_cos().0 }\n}\n";
        assert_eq!(places(text), [(2, "exp"), (2, "powf"), (4, "tanh")]);
    }
}
