//! Decodes a kernel's statements: names, scopes, labels, calls.
//!
//! Calls are inlined: a function's body gets new registers, and its parameters are the memory that
//! the caller filled.

use std::collections::HashMap;

use super::items::{Globals, Item, declared};
use super::operand::{Operand, operands};
use super::tokens::{Token, tokens};
use crate::machine::{Code, Guard, Instruction, Op, Register};

/// Maximum depth of nested calls.
const MAX_CALLS: usize = 8;

/// Meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    Register(Register),
    /// Offset in the thread's local memory.
    Local(u32),
    /// Offset in the block's shared memory.
    Shared(u32),
    /// Offset in the kernel's parameters.
    Param(u32),
    /// Address of a module variable.
    Global(u64),
}

/// Names declared between two braces.
#[derive(Default)]
struct Scope<'a> {
    names: HashMap<&'a str, Symbol>,
    /// Register families (`%r<112>`): prefix, and register file.
    families: Vec<(&'a str, usize)>,
    labels: HashMap<&'a str, usize>,
    /// The scope is a function's outermost: outer scopes belong to its caller and are not visible.
    is_function: bool,
}

/// A kernel being decoded.
pub(super) struct Body<'a> {
    items: &'a HashMap<String, Item>,
    globals: &'a Globals,
    scopes: Vec<Scope<'a>>,
    shared: HashMap<&'a str, u32>,
    shared_bytes: u32,
    instructions: Vec<Instruction>,
    registers: [u32; 3],
    local_bytes: u32,
    /// Instruction index of each label; a decoded branch has the label's number as its target.
    labels: Vec<u32>,
    /// End labels of the functions that are being inlined.
    ends: Vec<usize>,
}

/// Decodes a kernel. Returns its code and the size of its static shared memory in bytes.
pub(super) fn decode(
    entry: &Item,
    items: &HashMap<String, Item>,
    globals: &Globals,
) -> Result<(Code, u32), String> {
    let mut body = Body {
        items,
        globals,
        scopes: vec![Scope::default()],
        shared: HashMap::new(),
        shared_bytes: 0,
        instructions: Vec::new(),
        registers: [0; 3],
        local_bytes: 0,
        labels: Vec::new(),
        ends: Vec::new(),
    };
    body.place_shared(entry)?;
    for param in &entry.params {
        body.name(&param.name, Symbol::Param(param.offset));
    }
    body.statements(&tokens(&entry.body, entry.line))?;
    body.push(entry.line, None, Op::Exit);
    body.resolve();
    let Body { instructions, registers, local_bytes, shared_bytes, .. } = body;
    Ok((Code { instructions, registers, local_bytes }, shared_bytes))
}

impl<'a> Body<'a> {
    /// Lays out shared memory: variables of known size first, of the kernel and of all functions.
    /// Variables whose size the launch determines start behind them.
    fn place_shared(&mut self, entry: &'a Item) -> Result<(), String> {
        let globals = self.globals;
        let functions = self.items.values().filter(|item| !item.is_entry);
        let mut items: Vec<&Item> = functions.chain([entry]).collect();
        items.sort_by_key(|item| item.line);
        for item in items {
            let tokens = tokens(&item.body, item.line);
            for statement in tokens.split(|token| token.text == ";") {
                let Some(at) = statement.iter().position(|token| token.text == ".shared") else {
                    continue;
                };
                let declared = declared(&statement[at..])?;
                let name =
                    statement.iter().find(|token| token.text == declared.name).ok_or("no name")?;
                self.place_variable(name.text, declared.align, declared.bytes);
            }
        }
        for variable in globals.shared.iter().filter(|variable| variable.bytes > 0) {
            self.place_variable(&variable.name, variable.align, variable.bytes);
        }
        for variable in globals.shared.iter().filter(|variable| variable.bytes == 0) {
            self.shared_bytes = self.shared_bytes.next_multiple_of(variable.align.max(16));
            self.shared.insert(&variable.name, self.shared_bytes);
        }
        Ok(())
    }

    fn place_variable(&mut self, name: &'a str, align: u32, bytes: u32) {
        let offset = self.shared_bytes.next_multiple_of(align);
        self.shared.insert(name, offset);
        self.shared_bytes = offset + bytes;
    }

    fn scope(&mut self) -> &mut Scope<'a> {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }

    fn name(&mut self, name: &'a str, symbol: Symbol) {
        self.scope().names.insert(name, symbol);
    }

    fn push(&mut self, line: u32, guard: Option<Guard>, op: Op) {
        self.instructions.push(Instruction { guard, op, line });
    }

    fn resolve(&mut self) {
        for instruction in &mut self.instructions {
            if let Op::Branch { target } = &mut instruction.op {
                *target = self.labels[*target as usize];
            }
        }
    }

    fn new_label(&mut self) -> usize {
        self.labels.push(u32::MAX);
        self.labels.len() - 1
    }

    fn place_label(&mut self, label: usize) {
        self.labels[label] = self.instructions.len() as u32;
    }

    fn statements(&mut self, tokens: &[Token<'a>]) -> Result<(), String> {
        self.declare_labels(tokens);
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            let failed = |why: String| format!("line {}: {why}", token.line);
            match (token.text, tokens.get(at + 1).map(|next| next.text)) {
                ("{", _) => {
                    self.scopes.push(Scope::default());
                    self.declare_labels(&tokens[at + 1..]);
                    at += 1;
                }
                ("}", _) => {
                    self.scopes.pop();
                    at += 1;
                }
                (";", _) => at += 1,
                (name, Some(":")) => {
                    let label = self.label(name).ok_or_else(|| failed(format!("label {name}")))?;
                    self.place_label(label);
                    at += 2;
                }
                _ => {
                    let rest = &tokens[at..];
                    let length = rest
                        .iter()
                        .position(|t| t.text == ";")
                        .ok_or_else(|| failed("no ;".to_owned()))?;
                    self.statement(&rest[..length]).map_err(failed)?;
                    at += length + 1;
                }
            }
        }
        Ok(())
    }

    /// Declares a scope's labels at its beginning, because branches may precede them.
    fn declare_labels(&mut self, tokens: &[Token<'a>]) {
        let mut depth = 0_u32;
        for (token, next) in tokens.iter().zip(tokens.iter().skip(1)) {
            match token.text {
                "{" => depth += 1,
                "}" if depth == 0 => return,
                "}" => depth -= 1,
                name if depth == 0 && next.text == ":" => {
                    let label = self.new_label();
                    self.scope().labels.insert(name, label);
                }
                _ => {}
            }
        }
    }

    /// Scopes from the innermost to the function's.
    fn visible(&self) -> impl Iterator<Item = &Scope<'a>> {
        let function = self.scopes.iter().rposition(|scope| scope.is_function).unwrap_or(0);
        self.scopes[function..].iter().rev()
    }

    fn label(&self, name: &str) -> Option<usize> {
        self.visible().find_map(|scope| scope.labels.get(name)).copied()
    }

    pub(super) fn branch(&self, name: &str) -> Result<Op, String> {
        let label = self.label(name).ok_or_else(|| format!("no label {name}"))?;
        Ok(Op::Branch { target: label as u32 })
    }

    /// A kernel's exit, or a branch to the end of an inlined function.
    pub(super) fn leave(&self) -> Op {
        self.ends.last().map_or(Op::Exit, |label| Op::Branch { target: *label as u32 })
    }

    pub(super) fn is_in_function(&self) -> bool {
        !self.ends.is_empty()
    }

    /// Looks up a name.
    pub(super) fn symbol(&mut self, name: &'a str) -> Result<Symbol, String> {
        if let Some(symbol) = self.visible().find_map(|scope| scope.names.get(name)) {
            return Ok(*symbol);
        }
        if let Some(offset) = self.shared.get(name) {
            return Ok(Symbol::Shared(*offset));
        }
        if let Some(address) = self.globals.address(name) {
            return Ok(Symbol::Global(address));
        }
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let of_family = |scope: &Scope<'a>| {
            scope.families.iter().find(|(family, _)| *family == prefix).map(|f| f.1)
        };
        let file = self.visible().find_map(of_family).ok_or_else(|| format!("no {name}"))?;
        let register = self.new_register(file);
        // Families are declared at the beginning of a function: their registers live as long as it
        // does.
        let function = self.scopes.iter().rposition(|scope| scope.is_function).unwrap_or(0);
        self.scopes[function].names.insert(name, Symbol::Register(register));
        Ok(Symbol::Register(register))
    }

    /// Allocates a register without a name.
    pub(super) fn new_register(&mut self, file: usize) -> Register {
        let number = self.registers[file];
        self.registers[file] += 1;
        match file {
            0 => Register::Word(number),
            1 => Register::Long(number),
            _ => Register::Predicate(number),
        }
    }

    fn local(&mut self, align: u32, bytes: u32) -> u32 {
        let offset = self.local_bytes.next_multiple_of(align.max(8));
        self.local_bytes = offset + bytes;
        offset
    }

    fn statement(&mut self, statement: &[Token<'a>]) -> Result<(), String> {
        let Some(first) = statement.first() else { return Ok(()) };
        if first.text.starts_with('.') {
            return self.directive(first.text, statement);
        }
        let (guard, at) = match first.text {
            "@" => {
                let is_negated = statement.get(1).is_some_and(|token| token.text == "!");
                let at = 1 + usize::from(is_negated);
                let name = statement.get(at).ok_or("a predicate is missing")?.text;
                (Some(Guard { register: self.predicate_named(name)?, is_negated }), at + 1)
            }
            _ => (None, 0),
        };
        let opcode = statement.get(at).ok_or("an instruction is missing")?.text;
        let operands = operands(&statement[at + 1..])?;
        if opcode.starts_with("call") {
            return self.call(first.line, &operands);
        }
        let op = self.op(opcode, &operands).map_err(|why| format!("{opcode}: {why}"))?;
        self.push(first.line, guard, op);
        Ok(())
    }

    fn directive(&mut self, kind: &str, statement: &[Token<'a>]) -> Result<(), String> {
        match kind {
            ".reg" => self.declare_registers(statement),
            ".local" | ".param" => {
                let declared = declared(statement)?;
                let offset = self.local(declared.align, declared.bytes);
                let name = statement.iter().find(|token| token.text == declared.name);
                self.name(name.ok_or("no name")?.text, Symbol::Local(offset));
                Ok(())
            }
            _ => Ok(()), // .shared is laid out already; .pragma, .loc
        }
    }

    /// `.reg .b32 %r<112>` or `.reg .pred done, again`.
    fn declare_registers(&mut self, statement: &[Token<'a>]) -> Result<(), String> {
        let kind = statement.get(1).ok_or("no type")?.text;
        let file = match kind {
            ".pred" => 2,
            ".b64" | ".u64" | ".s64" | ".f64" => 1,
            _ => 0,
        };
        for name in statement[2..].split(|token| token.text == ",") {
            let Some(first) = name.first() else { continue };
            if name.len() > 1 {
                self.scope().families.push((first.text, file));
            } else {
                let register = self.new_register(file);
                self.name(first.text, Symbol::Register(register));
            }
        }
        Ok(())
    }

    /// Inlines a function: `call (returned), name, (parameters)`.
    fn call(&mut self, line: u32, operands: &[Operand<'a>]) -> Result<(), String> {
        let mut lists = operands.iter().filter_map(|operand| match operand {
            Operand::List(list) => Some(list.as_slice()),
            _ => None,
        });
        let name = operands.iter().find_map(|operand| match operand {
            Operand::Name(name) => Some(*name),
            _ => None,
        });
        let function =
            name.and_then(|name| self.items.get(name)).ok_or("a call of what is not here")?;
        if self.ends.len() >= MAX_CALLS {
            return Err("calls go too deep".to_owned());
        }
        let returned =
            if function.returns.is_empty() { &[][..] } else { lists.next().unwrap_or(&[]) };
        let given = lists.next().unwrap_or(&[]);
        let formal = function.returns.iter().zip(returned).chain(function.params.iter().zip(given));
        let mut inner = Scope { is_function: true, ..Scope::default() };
        for (param, actual) in formal {
            let Operand::Name(actual) = actual else {
                return Err("a parameter without a name".to_owned());
            };
            inner.names.insert(&param.name, self.symbol(actual)?);
        }
        let end = self.new_label();
        self.ends.push(end);
        self.scopes.push(inner);
        self.statements(&tokens(&function.body, function.line))?;
        self.scopes.pop();
        self.ends.pop();
        self.place_label(end);
        self.push(line, None, Op::Nothing);
        Ok(())
    }
}
