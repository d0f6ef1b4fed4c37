//! Kubernetes quantities (`250m`, `1Gi`) as integers. It decides how much is asked and offered; it never rounds a request down.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

const SUFFIXES: [(&str, f64); 13] = [
    ("Ki", 1024.0),
    ("Mi", 1_048_576.0),
    ("Gi", 1_073_741_824.0),
    ("Ti", 1_099_511_627_776.0),
    ("Pi", 1_125_899_906_842_624.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
];

/// The quantity in thousandths, rounded up; None when it is not a quantity.
pub fn milli(quantity: &Quantity) -> Option<i64> {
    let text = quantity.0.trim();
    let (number, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|number| (number, *factor)))
        .unwrap_or((text, 1.0));
    let value = number.parse::<f64>().ok()? * factor * 1000.0;
    (value.is_finite() && value.abs() < 9e18).then(|| (value - 1e-6).ceil() as i64)
}

/// The quantity in whole units, rounded up; None when it is not a quantity.
pub fn units(quantity: &Quantity) -> Option<i64> {
    milli(quantity).map(|milli| milli.div_euclid(1000) + i64::from(milli.rem_euclid(1000) != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_mean_what_kubernetes_means() {
        for (text, expected) in [("250m", 250), ("1", 1000), ("0.5", 500), ("2k", 2_000_000), ("1Ki", 1_024_000)] {
            assert_eq!(milli(&Quantity(text.into())), Some(expected), "{text}");
        }
        assert_eq!(units(&Quantity("1Gi".into())), Some(1 << 30));
        assert_eq!(units(&Quantity("1500m".into())), Some(2), "requests round up");
        assert_eq!(milli(&Quantity("lots".into())), None);
    }
}
