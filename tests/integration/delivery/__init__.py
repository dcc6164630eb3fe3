"""What belongs to no single step of a delivery: operations, pauses, suspension, announcements, volatile messages."""
