//! Checks machine code for writes to registers that warpgroup products in flight read.
//!
//! `wgmma` with its A operand in registers reads them until it has been awaited. Neither the
//! hardware nor the assembler, which moves copies across the wait, prevents other instructions from
//! writing to them. The check therefore walks through each loop with products twice: a product's
//! registers are reserved from its `HGMMA` to the `WARPGROUP.DEPBAR` that awaits its group.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Instructions whose first register operand is read, not written. [`written`] handles `SETP`.
const READERS: &[&str] = &[
    "BAR",
    "BRA",
    "BSSY",
    "BSYNC",
    "CCTL",
    "ELECT",
    "EXIT",
    "HGMMA",
    "LDGSTS",
    "NOP",
    "PLOP3",
    "R2UR",
    "RED",
    "ST",
    "STG",
    "STL",
    "STS",
    "SYNCS",
    "UBLKCP",
    "WARPGROUP",
    "WARPSYNC",
];

/// A kernel: its instructions and the positions of its labels.
struct Kernel<'a> {
    name: &'a str,
    code: Vec<&'a str>,
    labels: BTreeMap<&'a str, usize>,
}

/// Writes to registers of products in flight, one line each.
///
/// # Errors
/// Products outside of loops, which are not checked.
pub fn find(disassembly: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for kernel in kernels(disassembly) {
        let has_products = |l: &Range<usize>| kernel.code[l.clone()].iter().any(|i| is_product(i));
        let loops: Vec<_> = loops(&kernel).filter(has_products).collect();
        let is_inner = |l: &Range<usize>| {
            !loops.iter().any(|other| other != l && l.start <= other.start && other.end <= l.end)
        };
        let inner: Vec<_> = loops.iter().filter(|l| is_inner(l)).collect();
        for (at, instruction) in kernel.code.iter().enumerate().filter(|(_, i)| is_product(i)) {
            if left_side(instruction).is_some() && !inner.iter().any(|l| l.contains(&at)) {
                return Err(format!("{}: {instruction} is in no loop", kernel.name));
            }
        }
        for range in inner {
            let hazards = hazards(&kernel.code[range.clone()]);
            found.extend(hazards.into_iter().map(|i| format!("{}: {i}", kernel.name)));
        }
    }
    Ok(found)
}

fn kernels(disassembly: &str) -> Vec<Kernel<'_>> {
    let mut kernels: Vec<Kernel<'_>> = Vec::new();
    for line in disassembly.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix(".text.").and_then(|rest| rest.strip_suffix(':')) {
            kernels.push(Kernel { name, code: Vec::new(), labels: BTreeMap::new() });
        }
        let Some(kernel) = kernels.last_mut() else { continue };
        if let Some((_, instruction)) =
            line.strip_prefix("/*").and_then(|rest| rest.split_once("*/"))
        {
            kernel.code.push(instruction.split(';').next().unwrap_or_default().trim());
        } else if let Some(label) = line.strip_suffix(':') {
            kernel.labels.insert(label, kernel.code.len());
        }
    }
    kernels
}

/// Ranges from the target of a backward branch to the branch.
fn loops<'a>(kernel: &'a Kernel<'_>) -> impl Iterator<Item = Range<usize>> + 'a {
    kernel.code.iter().enumerate().filter_map(|(at, instruction)| {
        let (_, rest) = instruction.split_once("BRA ")?;
        let label = rest.split_once("`(")?.1.strip_suffix(')')?;
        let start = *kernel.labels.get(label)?;
        (start < at).then_some(start..at + 1)
    })
}

fn is_product(instruction: &str) -> bool {
    instruction.contains("HGMMA.")
}

/// The registers of a product's A operand.
fn left_side(instruction: &str) -> Option<Range<u32>> {
    let first = register(instruction.split(',').nth(1)?)?;
    Some(first..first + 4)
}

/// The number of a register; `None` for uniform registers and the zero register.
fn register(operand: &str) -> Option<u32> {
    let name = operand.trim().strip_prefix('R')?;
    name.split('.').next()?.parse().ok()
}

/// The registers that an instruction writes.
fn written(instruction: &str) -> Range<u32> {
    let without_predicate = instruction
        .strip_prefix('@')
        .and_then(|rest| rest.split_once(' '))
        .map_or(instruction, |(_, rest)| rest.trim_start());
    let Some((operation, operands)) = without_predicate.split_once(' ') else { return 0..0 };
    let family = operation.split('.').next().unwrap_or_default();
    if READERS.contains(&family) || family.contains("SETP") {
        return 0..0;
    }
    let is_predicate = |operand: &&str| operand.starts_with('P') || operand.starts_with("UP");
    let first = operands.split(',').map(str::trim).find(|operand| !is_predicate(operand));
    let Some(first) = first.and_then(register) else { return 0..0 };
    let is_pair = operation.ends_with(".64") || operation.contains(".WIDE") || family == "CS2R";
    let count = if operation.contains(".128") { 4 } else { 1 + u32::from(is_pair) };
    first..first + count
}

/// Instructions of a loop that write to registers of products in flight.
fn hazards<'a>(code: &[&'a str]) -> Vec<&'a str> {
    let (mut open, mut under_way) = (Vec::new(), VecDeque::<Vec<Range<u32>>>::new());
    let mut found = Vec::new();
    for instruction in code.iter().chain(code) {
        if is_product(instruction) {
            open.extend(left_side(instruction));
            if instruction.contains("gsb0") {
                under_way.push_back(std::mem::take(&mut open));
            }
        } else if let Some((_, left)) = instruction.split_once("DEPBAR.LE gsb0, 0x") {
            let left = usize::from_str_radix(left.trim(), 16).unwrap_or_default();
            under_way.drain(..under_way.len().saturating_sub(left));
        } else {
            let its = written(instruction);
            let meets = |other: &Range<u32>| its.start < other.end && other.start < its.end;
            if under_way.iter().flatten().chain(&open).any(meets) && !found.contains(instruction) {
                found.push(*instruction);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop with two groups of products. `load` is at its top; `wait` groups may be in flight at
    /// its end.
    fn disassembly(load: &str, wait: u32) -> String {
        let code = [
            "LDC R1, c[0x0][0x28]",
            load,
            "HGMMA.64x64x16.F32 R24, R56, gdesc[UR4], R24, gsb0",
            "WARPGROUP.DEPBAR.LE gsb0, 0x1",
            "HFMA2 R72, R17, R10.reuse.H0_H0, R78.reuse.H1_H1",
            "HGMMA.64x64x16.F32 R24, R72, gdesc[UR4], R24, gsb0",
            &format!("WARPGROUP.DEPBAR.LE gsb0, 0x{wait}"),
            "@!P0 BRA `(.L_x_1)",
            "EXIT",
        ];
        let line = |(i, text): (usize, &&str)| {
            let label = if i == 1 { ".L_x_1:\n" } else { "" };
            format!("{label}        /*{:04x}*/                   {text} ;\n", 16 * i)
        };
        let lines: String = code.iter().enumerate().map(line).collect();
        format!(".section .text.wide,\"ax\"\n.text.wide:\n{lines}")
    }

    #[test]
    fn a_load_into_what_a_product_reads_is_found() {
        let found = |load, wait| find(&disassembly(load, wait)).unwrap();
        assert_eq!(found("@P1 LDS.128 R72, [R57]", 1), ["wide: @P1 LDS.128 R72, [R57]"]);
        assert_eq!(found("LDS.128 R70, [R57]", 1).len(), 1);
        assert_eq!(found("ISETP.GE.U32.AND P0, PT, R72, R3, PT", 1), Vec::<String>::new());
        assert_eq!(found("STS.128 [R57], R72", 1), Vec::<String>::new());
        // Awaited, or other registers, including registers of the first group.
        for load in ["LDS.128 R72, [R57]", "LDS.128 R56, [R57]"] {
            assert_eq!(found(load, 0), Vec::<String>::new());
        }
        assert_eq!(found("LDS.128 R56, [R57]", 1), Vec::<String>::new());
    }

    #[test]
    fn products_outside_of_loops_are_refused() {
        let text = disassembly("NOP", 0).replace("@!P0 BRA `(.L_x_1)", "NOP");
        assert!(find(&text).is_err_and(|why| why.contains("HGMMA")));
    }

    #[test]
    fn written_registers_are_recognized() {
        assert_eq!(written("IMAD.WIDE.U32 R8, R11, 0x50, R8"), 8..10);
        assert_eq!(written("LDG.E.64 R8, desc[UR22][R8.64]"), 8..10);
        assert_eq!(written("SHF.R.U64 R8, R9, 0x3, R10"), 8..9);
        assert_eq!(written("CS2R R42, SRZ"), 42..44);
        assert_eq!(written("R2UR UR5, R2"), 0..0);
        assert_eq!(written("UIADD3 UR12, UR14, 0x10, URZ"), 0..0);
        assert_eq!(written("IADD3 R8, P0, R8, 0x10, RZ"), 8..9);
    }
}
