//! Combines the parts of each schema to one part. The library would combine them too, but it
//! expands values without restrictions, and treats recursive references without a limit.

use super::document::{Document, Fields, Items, Part, Range, Schema, Text, Type};
use super::parse::check_counts;
use super::place::At;
use super::values;
use crate::ConstraintError;
use crate::work::limit;

/// Combines the parts of all schemas. Then a schema has at most two parts: values, and another one.
pub(super) fn merge(document: Document, max_nodes: usize) -> Result<Document, ConstraintError> {
    let Document { root, definitions } = document;
    let mut merger = Merger { definitions: &definitions, nodes: 0, max_nodes };
    let root = merger.schema(root, &[])?;
    let merged = definitions.iter().map(|schema| merger.schema(schema.clone(), &[]));
    let merged = merged.collect::<Result<_, _>>()?;
    Ok(Document { root, definitions: merged })
}

struct Merger<'d> {
    definitions: &'d [Schema],
    nodes: usize,
    max_nodes: usize,
}

/// Definitions that are being written in place of a reference.
type Stack<'s> = &'s [usize];

impl Merger<'_> {
    fn count_node(&mut self) -> Result<(), ConstraintError> {
        self.nodes += 1;
        let what = "the number of schemas after \"allOf\" and \"$ref\" are applied";
        limit(what, self.nodes as u64, self.max_nodes as u64)
    }

    /// Combines the parts of a schema and of the schemas in it.
    fn schema(&mut self, mut schema: Schema, stack: Stack<'_>) -> Result<Schema, ConstraintError> {
        self.count_node()?;
        for child in schema.children_mut() {
            *child = self.schema(std::mem::take(child), stack)?;
        }
        self.combine(schema.parts, &schema.at, stack)
    }

    /// One schema from parts whose schemas are combined.
    fn combine(
        &mut self,
        mut parts: Vec<Part>,
        at: &At,
        stack: Stack<'_>,
    ) -> Result<Schema, ConstraintError> {
        values::narrow(&mut parts);
        if let Some(never) = parts.iter().position(|part| matches!(part, Part::Never(_))) {
            return Ok(Schema::with(parts.swap_remove(never), at));
        }
        let mut kept = Vec::new();
        let mut combined: Option<Part> = None;
        for part in parts {
            if matches!(part, Part::Values(_)) {
                kept.push(part);
                continue;
            }
            combined = Some(match combined {
                None => part,
                Some(other) => self.both(other, part, at, stack)?,
            });
        }
        kept.extend(combined);
        values::narrow(&mut kept);
        Ok(Schema { parts: kept, at: at.clone(), ..Schema::default() })
    }

    fn both_schemas(
        &mut self,
        left: &Schema,
        right: &Schema,
        stack: Stack<'_>,
    ) -> Result<Schema, ConstraintError> {
        self.count_node()?;
        let parts = left.parts.iter().chain(&right.parts).cloned().collect();
        self.combine(parts, &left.at, stack)
    }

    /// The values that both parts allow.
    fn both(
        &mut self,
        left: Part,
        right: Part,
        at: &At,
        stack: Stack<'_>,
    ) -> Result<Part, ConstraintError> {
        self.count_node()?;
        let distribute = |merger: &mut Self, all: Vec<Schema>, other: &Part| {
            let other = Schema::with(other.clone(), at);
            let all = all.iter().map(|schema| merger.both_schemas(schema, &other, stack));
            all.collect::<Result<Vec<_>, _>>()
        };
        match (left, right) {
            (never @ Part::Never(_), _) | (_, never @ Part::Never(_)) => Ok(never),
            (Part::Ref(target), other) | (other, Part::Ref(target)) => {
                let same = matches!(&other, Part::Ref(own) if *own == target);
                if same {
                    return Ok(other);
                }
                let definition = self.definitions.get(target).filter(|_| !stack.contains(&target));
                let reason = "a recursive reference cannot be combined with other keywords";
                let definition = definition.ok_or_else(|| at.unsupported("$ref", reason))?;
                let stack: Vec<usize> = stack.iter().copied().chain([target]).collect();
                let resolved = self.schema(definition.clone(), &stack)?;
                let parts = resolved.parts.into_iter().chain([other]).collect();
                let schema = self.combine(parts, at, &stack)?;
                Ok(single(schema.parts, at))
            }
            (Part::One(all), other) | (other, Part::One(all)) => {
                Ok(Part::One(distribute(self, all, &other)?))
            }
            (Part::Any(all), other) | (other, Part::Any(all)) => {
                Ok(Part::Any(distribute(self, all, &other)?))
            }
            (Part::Types(left), Part::Types(right)) => {
                let mut types = Vec::new();
                for left in &left {
                    for right in &right {
                        types.extend(self.both_types(left, right, at, stack)?);
                    }
                }
                if types.is_empty() {
                    let reason = format!(
                        "the types {} and {} exclude each other",
                        names(&left),
                        names(&right)
                    );
                    return Ok(Part::Never(reason.into()));
                }
                Ok(Part::Types(types))
            }
            // Values are kept apart.
            (values @ Part::Values(_), other) | (other, values @ Part::Values(_)) => {
                Ok(single(vec![values, other], at))
            }
        }
    }

    fn both_types(
        &mut self,
        left: &Type,
        right: &Type,
        at: &At,
        stack: Stack<'_>,
    ) -> Result<Option<Type>, ConstraintError> {
        Ok(match (left, right) {
            (Type::Null, Type::Null) => Some(Type::Null),
            (Type::Boolean, Type::Boolean) => Some(Type::Boolean),
            (Type::Number(left), Type::Number(right)) => {
                Some(Type::Number(ranges(left, right, at)?))
            }
            (
                Type::Integer(left) | Type::Number(left),
                Type::Integer(right) | Type::Number(right),
            ) => Some(Type::Integer(ranges(left, right, at)?)),
            (Type::String(left), Type::String(right)) => Some(Type::String(texts(left, right))),
            (Type::Array(left), Type::Array(right)) => {
                Some(Type::Array(self.items(left, right, stack)?))
            }
            (Type::Object(left), Type::Object(right)) => {
                Some(Type::Object(self.fields(left, right, at, stack)?))
            }
            _ => None,
        })
    }

    fn rests(
        &mut self,
        left: Option<&Schema>,
        right: Option<&Schema>,
        stack: Stack<'_>,
    ) -> Result<Option<Box<Schema>>, ConstraintError> {
        Ok(match (left, right) {
            (Some(left), Some(right)) => Some(Box::new(self.both_schemas(left, right, stack)?)),
            (one, other) => one.or(other).cloned().map(Box::new),
        })
    }

    fn items(
        &mut self,
        left: &Items,
        right: &Items,
        stack: Stack<'_>,
    ) -> Result<Items, ConstraintError> {
        let anything = Schema::default();
        let at = |items: &Items, index: usize| items.item(index).unwrap_or(&anything).clone();
        let length = left.prefix.len().max(right.prefix.len());
        let prefix = (0..length)
            .map(|index| self.both_schemas(&at(left, index), &at(right, index), stack))
            .collect::<Result<_, _>>()?;
        Ok(Items {
            prefix,
            rest: self.rests(left.rest.as_deref(), right.rest.as_deref(), stack)?,
            min: left.min.max(right.min),
            max: lowest(left.max, right.max),
        })
    }

    fn fields(
        &mut self,
        left: &Fields,
        right: &Fields,
        at: &At,
        stack: Stack<'_>,
    ) -> Result<Fields, ConstraintError> {
        let is_open = |fields: &Fields| {
            fields.properties.is_empty() && fields.patterns.is_empty() && fields.rest.is_none()
        };
        let has_patterns = !left.patterns.is_empty() || !right.patterns.is_empty();
        if has_patterns && !is_open(left) && !is_open(right) {
            let reason = "it cannot be combined with other schemas of properties";
            return Err(at.unsupported("patternProperties", reason));
        }
        let anything = Schema::default();
        let of = |fields: &Fields, name: &str| {
            let (own, rest) = fields.property(name);
            own.or(rest).unwrap_or(&anything).clone()
        };
        let mut properties: Vec<(String, Schema)> = Vec::new();
        let names = left.properties.iter().chain(&right.properties);
        for (name, _) in names {
            if properties.iter().all(|(known, _)| known != name) {
                let schema = self.both_schemas(&of(left, name), &of(right, name), stack)?;
                properties.push((name.clone(), schema));
            }
        }
        let mut required = left.required.clone();
        required
            .extend(right.required.iter().filter(|name| !left.required.contains(name)).cloned());
        let fields = Fields {
            properties,
            patterns: left.patterns.iter().chain(&right.patterns).cloned().collect(),
            rest: self.rests(left.rest.as_deref(), right.rest.as_deref(), stack)?,
            required,
            min: left.min.max(right.min),
            max: lowest(left.max, right.max),
        };
        check_counts(&fields, at)?;
        Ok(fields)
    }
}

/// A part for a combined schema.
fn single(mut parts: Vec<Part>, at: &At) -> Part {
    match parts.len() {
        1 => parts.remove(0),
        // Without parts, or with values and another part.
        _ => Part::Any(vec![Schema { parts, at: at.clone(), ..Schema::default() }]),
    }
}

/// The names of types, for a message.
fn names(types: &[Type]) -> String {
    types.iter().map(Type::name).collect::<Vec<_>>().join(", ")
}

pub(super) fn lowest<T: PartialOrd>(left: Option<T>, right: Option<T>) -> Option<T> {
    match (left, right) {
        (Some(left), Some(right)) => Some(if right < left { right } else { left }),
        (one, other) => one.or(other),
    }
}

fn highest(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    lowest(left.map(|number| -number), right.map(|number| -number)).map(|number| -number)
}

pub(super) fn ranges(left: &Range, right: &Range, at: &At) -> Result<Range, ConstraintError> {
    let multiple_of = match (left.multiple_of, right.multiple_of) {
        (Some(left), Some(right)) => {
            let common = values::common_multiple(left, right);
            let reason = "the common multiple is too large";
            Some(common.ok_or_else(|| at.unsupported("multipleOf", reason))?)
        }
        (one, other) => one.or(other),
    };
    Ok(Range {
        min: highest(left.min, right.min),
        max: lowest(left.max, right.max),
        above: highest(left.above, right.above),
        below: lowest(left.below, right.below),
        multiple_of,
        format: None,
    })
}

fn texts(left: &Text, right: &Text) -> Text {
    let mut formats = left.formats.clone();
    formats.extend(right.formats.iter().filter(|format| !left.formats.contains(format)));
    Text {
        min: left.min.max(right.min),
        max: lowest(left.max, right.max),
        patterns: left.patterns.iter().chain(&right.patterns).cloned().collect(),
        formats,
    }
}
