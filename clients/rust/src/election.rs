//! One leader among many candidates, with a value that everybody can see.
