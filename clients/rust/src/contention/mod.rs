//! Many contend for one lock, and each is told when it becomes the owner and when it ceases to be.
