"""What every package uses: egress rules, encryption, rate limits, problems and parsing of the API."""
