//! Evaluates constants and integer functions of the kernels' headers, so that tests compare the
//! host with the code that ships, not with a copy of it.
//!
//! A function consists of `const uint32_t` declarations, `if` with a `return`, and a `return`. A
//! result of several numbers is a list in braces. Expressions have the operators of C++ on unsigned
//! numbers, `?:`, casts by name, `min`, `max`, and calls of other functions and constants of the
//! same source.

use std::collections::BTreeMap;

/// The constants and functions of headers.
pub(crate) struct KernelSource {
    /// Expressions by name.
    constants: BTreeMap<String, String>,
    /// Parameters and body by name.
    functions: BTreeMap<String, (Vec<String>, String)>,
}

impl KernelSource {
    /// Reads headers by their paths relative to `kernels/`.
    pub(crate) fn read(paths: &[&str]) -> Self {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/");
        let read = |path: &&str| {
            std::fs::read_to_string(format!("{folder}{path}"))
                .unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        Self::of(&paths.iter().map(read).collect::<String>())
    }

    fn of(text: &str) -> Self {
        let bare = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let text = bare.collect::<Vec<_>>().join("\n");
        let mut constants = BTreeMap::new();
        let declarations = text.split("constexpr uint32_t ").skip(1);
        let declarations = declarations.filter_map(|rest| rest.split(';').next());
        for declaration in declarations.filter(|its| !its.contains('{')) {
            for (name, expression) in declared(declaration) {
                constants.insert(name.to_owned(), expression.to_owned());
            }
        }
        for definition in text.lines().filter_map(|line| line.strip_prefix("#define ")) {
            let parts: Vec<&str> = definition.split_whitespace().collect();
            if let [name, number] = parts[..] {
                constants.insert(name.to_owned(), number.to_owned());
            }
        }
        let mut functions = BTreeMap::new();
        for (at, _) in text.match_indices('(') {
            let before = text[..at].rsplit_once(char::is_whitespace);
            let Some((result, name)) = before else { continue };
            let is_result = ["uint32_t", "Cut"].iter().any(|its| result.trim_end().ends_with(its));
            let parts = text[at + 1..].split_once(')');
            let Some((parameters, rest)) = parts.filter(|_| is_result) else { continue };
            let rest = rest.trim_start().trim_start_matches("const").trim_start();
            let Some(body) = rest.strip_prefix('{') else { continue };
            let names = parameters.split(',').filter_map(|its| its.split_whitespace().last());
            let names = names.map(str::to_owned).collect();
            let body = body.split("\n}").next().unwrap_or_default();
            functions.insert(name.to_owned(), (names, body.to_owned()));
        }
        Self { constants, functions }
    }

    /// The value of `constexpr uint32_t NAME = …`, which may be one of several declarations, or of
    /// a `#define`.
    pub(crate) fn constant(&self, name: &str) -> u32 {
        let value = self.find_constant(name).unwrap_or_else(|| panic!("no constant {name}"));
        u32::try_from(value).unwrap_or_else(|_| panic!("{name} is {value}"))
    }

    /// The result of a function: one number, or the numbers of a list in braces.
    pub(crate) fn call(&self, name: &str, arguments: &[u32]) -> Vec<u32> {
        let arguments: Vec<u64> = arguments.iter().copied().map(u64::from).collect();
        let result = self.run(name, &arguments).unwrap_or_else(|| panic!("no function {name}"));
        result.into_iter().map(|number| number as u32).collect()
    }

    fn find_constant(&self, name: &str) -> Option<u64> {
        self.constants.get(name).map(|its| self.evaluate(its, &BTreeMap::new()))
    }

    fn run(&self, name: &str, arguments: &[u64]) -> Option<Vec<u64>> {
        let (names, body) = self.functions.get(name)?;
        assert_eq!(names.len(), arguments.len(), "arguments of {name}");
        let mut variables: BTreeMap<&str, u64> =
            names.iter().map(String::as_str).zip(arguments.iter().copied()).collect();
        let mut statements = body.as_str();
        loop {
            statements = statements.trim_start();
            if let Some(rest) = statements.strip_prefix("const uint32_t ") {
                let (declaration, rest) = rest.split_once(';')?;
                for (its_name, expression) in declared(declaration) {
                    let value = self.evaluate(expression, &variables);
                    variables.insert(its_name, value);
                }
                statements = rest;
            } else if let Some(rest) = statements.strip_prefix("if (") {
                let end = closing(rest);
                let holds = self.evaluate(&rest[..end], &variables) != 0;
                let (result, rest) = rest[end + 1..].trim_start().split_once(';')?;
                if holds {
                    return Some(self.returned(result, &variables));
                }
                statements = rest;
            } else {
                let (result, _) = statements.split_once(';')?;
                return Some(self.returned(result, &variables));
            }
        }
    }

    fn returned(&self, statement: &str, variables: &BTreeMap<&str, u64>) -> Vec<u64> {
        let result = statement.trim().strip_prefix("return ");
        let result = result.unwrap_or_else(|| panic!("not supported: {statement}"));
        match result.split_once('{') {
            Some((_, list)) => {
                let list = list.trim_end().trim_end_matches('}');
                split(list).map(|its| self.evaluate(its, variables)).collect()
            }
            None => vec![self.evaluate(result, variables)],
        }
    }

    fn evaluate(&self, expression: &str, variables: &BTreeMap<&str, u64>) -> u64 {
        let mut parser = Parser { source: self, variables, rest: expression };
        let value = parser.choice();
        assert!(parser.rest.trim().is_empty(), "not supported: {expression}");
        value
    }
}

/// The names and expressions of `a = …, b = …`.
fn declared(declaration: &str) -> impl Iterator<Item = (&str, &str)> {
    split(declaration).filter_map(|its| its.split_once('=')).map(|(name, its)| (name.trim(), its))
}

/// Splits at commas outside of brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    list.split(move |c| {
        depth += i32::from(matches!(c, '(' | '{')) - i32::from(matches!(c, ')' | '}'));
        c == ',' && depth == 0
    })
}

/// The position of the bracket that closes one before `text`.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    let end = text.char_indices().find(|(_, c)| {
        depth += i32::from(*c == '(') - i32::from(*c == ')');
        depth == 0
    });
    end.map_or(text.len(), |(at, _)| at)
}

/// Binary operators by precedence, the weakest first.
const OPERATORS: [&[&str]; 6] =
    [&["||"], &["&&"], &["==", "!="], &["<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"]];

struct Parser<'a> {
    source: &'a KernelSource,
    variables: &'a BTreeMap<&'a str, u64>,
    rest: &'a str,
}

impl Parser<'_> {
    fn has(&mut self, mark: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// `condition ? a : b`.
    fn choice(&mut self) -> u64 {
        let condition = self.binary(0);
        if !self.has("?") {
            return condition;
        }
        let first = self.choice();
        assert!(self.has(":"), "not supported: {}", self.rest);
        let second = self.choice();
        if condition != 0 { first } else { second }
    }

    fn binary(&mut self, level: usize) -> u64 {
        let Some(operators) = OPERATORS.get(level) else { return self.value() };
        let mut left = self.binary(level + 1);
        while let Some(operator) = operators.iter().find(|its| self.has(its)) {
            let right = self.binary(level + 1);
            left = match *operator {
                "||" => u64::from(left != 0 || right != 0),
                "&&" => u64::from(left != 0 && right != 0),
                "==" => u64::from(left == right),
                "!=" => u64::from(left != right),
                "<=" => u64::from(left <= right),
                ">=" => u64::from(left >= right),
                "<" => u64::from(left < right),
                ">" => u64::from(left > right),
                "+" => left + right,
                // The branch that is not chosen is evaluated, too.
                "-" => left.wrapping_sub(right) & u64::from(u32::MAX),
                "*" => left.wrapping_mul(right),
                "/" => left.checked_div(right).unwrap_or_default(),
                _ => left.checked_rem(right).unwrap_or_default(),
            };
        }
        left
    }

    fn value(&mut self) -> u64 {
        if self.has("(") {
            let value = self.choice();
            assert!(self.has(")"), "not supported: {}", self.rest);
            return value;
        }
        self.rest = self.rest.trim_start();
        let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | ':' | '\'');
        let end = self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            let digits = word.trim_end_matches('u');
            return digits.parse().unwrap_or_else(|_| panic!("not supported: {word}"));
        }
        if self.has("(") {
            let end = closing(self.rest);
            let arguments: Vec<u64> = split(&self.rest[..end])
                .map(|its| self.source.evaluate(its, self.variables))
                .collect();
            self.rest = &self.rest[end + 1..];
            return match (word, &arguments[..]) {
                ("min", [a, b]) => *a.min(b),
                ("max", [a, b]) => *a.max(b),
                ("div_up", [a, b]) => a.div_ceil((*b).max(1)),
                _ => match self.source.run(word, &arguments).as_deref() {
                    Some([value]) => *value,
                    _ => panic!("no function {word} of one number"),
                },
            };
        }
        let known = self.variables.get(word).copied();
        known.or_else(|| self.source.find_constant(word)).unwrap_or_else(|| panic!("no {word}"))
    }
}

#[test]
fn expressions_are_evaluated_as_in_cpp() {
    let source = KernelSource::of(
        "#define N 4u\nconstexpr uint32_t A = N - 1, B = A * 2 + 1;\n\
               constexpr bool C = true;\n\
               __device__ constexpr uint32_t twice(uint32_t n) {\n    return n > A ? 2 * n : A;\n}\n\
               static Cut cut(uint32_t a, uint32_t b) {\n\
               const uint32_t c = a / b, d = min(c, A);\n\
               if (c == 0 || a % b > 1)\n    return Cut{a, 1};\n\
               return Cut{twice(d + 10), (a - b) * 2};\n}\n",
    );
    assert_eq!(["A", "B"].map(|name| source.constant(name)), [3, 7]);
    assert_eq!([2, 3, 4].map(|n| source.call("twice", &[n])), [[3], [3], [8]]);
    assert_eq!(source.call("cut", &[20, 2]), [26, 36]);
    assert_eq!(source.call("cut", &[1, 2]), [1, 1]);
    assert_eq!(source.call("cut", &[7, 5]), [7, 1]);
}

#[test]
fn constants_of_steps_match_the_kernels() {
    use walla_device::step::{OutputRow, ResultRow, StepRow};

    let source = KernelSource::read(&["common/walla.cuh", "step/step.cuh"]);
    for (name, host) in [
        ("CANDIDATES_MAX", walla_types::MAX_CANDIDATES),
        ("PENALTY_WINDOW_MAX", walla_types::MAX_PENALTY_WINDOW),
        ("ROW_LAST_OF_SEQUENCE", StepRow::LAST_OF_SEQUENCE),
        ("OUTPUT_SAMPLE", OutputRow::SAMPLE),
        ("RESULT_SAMPLED", ResultRow::SAMPLED),
        ("RESULT_NOT_FINITE", ResultRow::NOT_FINITE),
    ] {
        assert_eq!(source.constant(name), host, "{name}");
    }
}

#[test]
fn tiles_and_segments_match_the_kernels() {
    let source = KernelSource::read(&["gemm/weight.cuh"]);
    assert_eq!(source.constant("TILE_ROWS"), crate::repack::TILE_ROWS as u32);
    assert_eq!(source.constant("SEGMENT"), crate::repack::SEGMENT as u32);
}

/// Fields of a structure in a source of Rust or CUDA, in order, without their types.
fn fields(text: &str, name: &str) -> Vec<String> {
    let body = text.split(&format!("struct {name} {{\n")).nth(1).unwrap_or_default();
    let lines = body.split("\n}").next().unwrap_or_default().lines();
    let code = lines.map(|line| line.split("//").next().unwrap_or_default().trim());
    let declared = code.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let name_of = |line: &str| match line.strip_prefix("pub ") {
        Some(rest) => rest.split(':').next().map(str::to_owned),
        None => line
            .split_whitespace()
            .nth(1)
            .map(|name| name.split(['[', ';']).next().unwrap_or_default().to_owned()),
    };
    declared.filter_map(name_of).collect()
}

/// The sizes are asserted by both sides, so only an exchange of two fields could go unnoticed.
#[test]
fn fields_of_steps_have_the_order_of_the_kernels() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let read = |path: &str| std::fs::read_to_string(format!("{folder}/../{path}")).unwrap();
    let (host, kernels) = (read("walla_device/src/step.rs"), read("../kernels/step/step.cuh"));
    for (name, count) in [
        ("StepHeader", 8),
        ("StepRow", 8),
        ("OutputRow", 20),
        ("BiasRow", 2),
        ("ResultHeader", 7),
        ("ResultRow", 4),
        ("Candidate", 2),
    ] {
        let (host, kernel) = (fields(&host, name), fields(&kernels, name));
        assert_eq!((host.len(), kernel.len()), (count, count), "{name}: {host:?} {kernel:?}");
        for (host, kernel) in host.iter().zip(&kernel) {
            // A field that only one side uses is reserved on the other.
            let is_reserved = kernel.starts_with("reserved");
            assert!(host == kernel || is_reserved, "{name}: {host} and {kernel}");
        }
    }
}
