//! Seeded random exploration of the core against a simulated store in virtual time.
